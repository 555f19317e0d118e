"""Runs one load for the command line: lines while it runs, tables or files when it is over."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keelog.cli.bench.options import Options, limits_of, workload_of
from keelog.cli.failures import OK, Partial, doing
from keelog.cli.interrupts import ending_in_order
from keelog.cli.output import Output
from protocol.errors import MqError

if TYPE_CHECKING:
    from keelog.bench.results import Result

STDOUT = Path("-")


class SomethingLost(MqError):
    """Messages were lost, or came twice or in another order."""


def run_load(kind: str, options: Options) -> int:
    """The whole command. Raises Partial for a broken limit, SomethingLost for a lost message."""
    # Imported here: numpy and sockets, which `--help` does without.
    from keelog.bench.report.text_report import listening

    with doing(f"cannot run keelog bench {kind}"):
        load, limits = workload_of(kind, options), limits_of(options)
        if options["html_file"] is not None:
            from keelog.bench.report.html_page import check_pictures

            check_pictures()
        from keelog.bench.running import run

        with ending_in_order(), listening() as listener:
            result = run(load, listener)
        result.limits_broken = limits.broken_by(result)
        _write(result, options)
    with doing(f"keelog bench {kind} found what must not be"):
        if result.faults:
            raise SomethingLost("; ".join(result.faults[:5]), "verify the store of --dir")
        if result.limits_broken:
            raise Partial("; ".join(result.limits_broken), "the same command without the limit")
    return OK


def _write(result: "Result", options: Options) -> None:
    files = {name: options[f"{name}_file"] for name in ("json", "csv", "html")}
    if STDOUT not in files.values():
        _show(result)
    if files["json"] is not None:
        _put(files["json"], json.dumps(result.as_dict(), indent=2) + "\n")
    if files["csv"] is not None:
        _put_csv(files["csv"], result)
    if files["html"] is not None:
        from keelog.bench.report.html_page import page

        _put(files["html"], page(result))


def _put(file: Path, text: str) -> None:
    if file == STDOUT:
        sys.stdout.write(text)
    else:
        file.write_text(text, encoding="utf-8")


def _put_csv(file: Path, result: "Result") -> None:
    rows = [
        {"stream": name, **{field: getattr(second, field) for field in second.__slots__}}
        for name, stream in result.streams.items()
        for second in stream.seconds
    ]
    if file == STDOUT:
        Output("csv").rows(rows)
    else:
        with file.open("wb") as stream:
            Output("csv", stream).rows(rows)


def _show(result: "Result") -> None:
    from keelog.bench.report.text_report import last_lines, process_rows, summary_rows

    output = Output("table")
    for rows in (summary_rows(result), process_rows(result)):
        _table(output, rows)
    output.text("\n".join([*last_lines(result), ""]))


def _table(output: Output, rows: Sequence[dict[str, Any]]) -> None:
    if rows:
        output.rows(rows)
        output.text("\n")
