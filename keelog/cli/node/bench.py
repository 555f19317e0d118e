"""`keelog bench …`: load tests; `python -m scripts.load …` is the same code.

Options become a workload and limits. A load shows lines while it runs, tables or files when it is
over. `keelog bench compare` shows two results, figure by figure.
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keelog.cli.failures import Partial, doing, ending_in_order
from keelog.cli.options import CliGroup, options, output_options, settings_options
from keelog.cli.output import Output
from protocol.errors import BadRequest, MqError
from protocol.human_text import bytes_of, count_of, seconds_of, share_of

if TYPE_CHECKING:
    from keelog.bench.results import Result
    from keelog.bench.workload import Workload


Options = dict[str, Any]
Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]
CALLERS = ("threads", "tasks", "inflight", "batches")
STDOUT = Path("-")
_RESULT_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


class _ResultFile(click.Path):
    """A file that may be written. A missing folder is an error before the load, not after it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        file = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not file.parent.is_dir():
            self.fail(f"there is no folder {str(file.parent)!r}; make it first", param, ctx)
        return file


_WRITABLE = _ResultFile(dir_okay=False, writable=True, allow_dash=True)


def _number(name: str, text: str) -> Decorator:
    return click.option(name, type=int, metavar="N", help=text)


def _text(name: str, metavar: str, text: str) -> Decorator:
    return click.option(name, metavar=metavar, help=text)


def _file(kind: str, text: str) -> Decorator:
    return click.option(f"--{kind}", f"{kind}_file", type=_WRITABLE, metavar="FILE", help=text)


def _folder(text: str) -> Decorator:
    kind = click.Path(file_okay=False)
    return click.option("--dir", "directory", type=kind, metavar="DIR", help=text)


sending_options = options(
    click.option(
        "--callers", type=click.Choice(CALLERS),
        help="threads, tasks: each waits for each answer; inflight: one producer that goes on;"
        " batches: the same with batches.",
    ),
    _number("--producers", "Callers that wait, in all."),
    _number("--processes", "Processes that send."),
    _number("--in-flight", "Messages or batches without an answer, of each process."),
    _number("--batch", "Messages of a batch."),
    click.option(
        "--acks", type=click.Choice(("appended", "flushed")), help="flushed: on the disk."
    ),
    _text(
        "--rate", "N",
        "Messages/s of all together, as 20K; latency counts from the intended time."
        " Default: full speed.",
    ),
)  # fmt: skip
"""How producers send."""
reading_options = options(
    _number("--consumers", "Processes that read."),
    _number("--pull-messages", "Of one pull, at most."),
    _text("--pull-bytes", "SIZE", "Of one pull, at most."),
)
"""How consumers read."""
output_and_limit_options = options(
    _file("json", "-: stdout."),
    _file("csv", "A line a second; -: stdout."),
    _file("html", "A page with pictures."),
    _text("--max-p50", "TIME", "As 1ms; beyond it: exit code 7."),
    _text("--max-p99", "TIME", "As 5ms."),
    _text("--max-p999", "TIME", "As 50ms."),
    _text("--min-rate", "N", "Messages/s, as 100K."),
    _text("--max-cpu", "S", "CPU seconds per million messages."),
)
"""The files of the result, and the limits that it must keep."""
load_options = options(
    _text("--body", "SIZE", "128, 1KiB, uniform:100-2000, lognormal:512."),
    _number("--topics", "Topics, taken in turn."),
    _number("--queues", "Queues of each topic."),
    _number("--keys", "Keys of each message."),
    _text("--tags", "TAG", "The tag of each message."),
    _text("--duration", "TIME", "Behind the warm-up: 10s, 5m."),
    _text("--count", "N", "So many messages instead, as 1M."),
    _text("--warm-up", "TIME", "Left out of the steady figures."),
    _text("--timeout", "TIME", "Of each request."),
    settings_options,
    _text("--node", "URL", "A node that runs; default: a new one."),
    _text("--client-key", "FILE", "Your .key_secret, where that node has keys."),
    _text("--server-key", "KEY|FILE", "Its public key: keelog key show DIR."),
    _folder("The new node's folder, kept; default: a temporary one, removed."),
    _number("--queue-workers", "Of the new node."),
    _number("--readers", "Of the new node."),
    output_and_limit_options,
)
"""Of every load on a node: the messages, how long, the node that runs or is started."""
_READ_BY: dict[str, Callable[[str], float]] = {
    **dict.fromkeys(("count", "stored"), lambda text: int(count_of(text))),
    **dict.fromkeys(("rate", "min_rate", "finds", "max_cpu"), count_of),
    **dict.fromkeys(("duration", "warm_up", "timeout", "kill_every"), seconds_of),
    **dict.fromkeys(("max_p50", "max_p99", "max_p999"), seconds_of),
    "pull_bytes": bytes_of,
}
"""How the text of an option becomes its value; others are values already."""


@click.group(cls=CliGroup)
def bench() -> None:
    """Measures a node under load: a line each second, then figures, as JSON or a page too.

    Without --node each command starts a node of its own on a temporary folder.

    Example: keelog bench send --duration 10s

    Example: keelog bench compare before.json after.json
    """


@bench.command("send")
@sending_options
@load_options
def send(**options: Any) -> None:
    """Sends messages: by default 64 producers, one at a time, 128 bytes each.

    Example: keelog bench send --callers batches --batch 100 --html send.html

    Example: keelog bench send --rate 5K --max-p99 5ms
    """
    run_load("send", options)


@bench.command("consume")
@reading_options
@_text("--stored", "N", "Messages to read, stored before; default 1M.")
@click.option(
    "--as", "read_as", type=click.Choice(("objects", "raw")), help="What is made of each."
)
@load_options
def consume(**options: Any) -> None:
    """Stores messages, then reads them from end to end, again and again; with --count, once.

    Example: keelog bench consume --count 5M --as raw
    """
    run_load("consume", options)


@bench.command("e2e")
@sending_options
@reading_options
@load_options
def e2e(**options: Any) -> None:
    """From the send to a consumer that waits in long pulls: 1,000 a second by default.

    Producers and consumers are processes of their own; bodies carry the time of the send.

    Example: keelog bench e2e --rate 1000 --max-p99 5ms
    """
    options["rate"] = options["rate"] or "1000"
    options["producers"] = options["producers"] or options["processes"] or 1
    run_load("e2e", options)


@bench.command("mixed")
@_text("--kill-every", "TIME", "SIGKILL to one worker or reader after another.")
@click.option(
    "--percent-of-full",
    type=float,
    metavar="N",
    help="The rate, as a part of full speed, which is measured first; default 70.",
)
@_text("--finds", "N", "Look-ups by key a second; default 100.")
@sending_options
@reading_options
@load_options
def mixed(**options: Any) -> None:
    """Producers, consumers, look-ups and kills at once; afterwards every message is checked.

    Consumers check that nothing is lost, twice or out of order. Then each acknowledged message is
    pulled again, the node is stopped, and its store verified as by `store verify --deep`.

    Example: keelog bench mixed --duration 10m --kill-every 30s --html mixed.html

    Example: keelog bench mixed --rate 5K --duration 1m
    """
    if options["rate"] is None and options["percent_of_full"] is None:
        options["percent_of_full"] = 70.0
    run_load("mixed", {**options, "callers": "inflight"})


@bench.command("store")
@click.option("--body", default="128,1KiB", metavar="SIZES", help="One after the other.")
@_number("--batch", "Messages of a batch.")
@click.option("--duration", default="2s", metavar="TIME", help="Of each measurement.")
@_text("--count", "N", "So many messages each instead, as 1M.")
@click.option("--warm-up", default="1s", metavar="TIME", help="Left out of the steady figures.")
@_folder("Where the stores are made and removed: a folder of the disk that is meant.")
@settings_options
@output_and_limit_options
def store(**options: Any) -> None:
    """The store in this process, without sockets: single puts, batches, a walk of the log.

    Puts go the writer's own way: encode, check, stamp, write. --min-rate and --max-p99 hold for
    the first stream.

    Example: keelog bench store --body 128 --duration 5s
    """
    run_load("store", options)


@bench.command("compare")
@click.argument("before", type=_RESULT_FILE)
@click.argument("after", type=_RESULT_FILE)
@click.option(
    "--max-regression", metavar="SHARE",
    help="As 10%: exit code 7 when rate, p50, p99 or CPU got worse by more.",
)  # fmt: skip
@output_options
def compare(before: Path, after: Path, max_regression: str | None, output: Output) -> None:
    """Compares two results of --json: ratio and verdict for each figure.

    Ratios within 5 % are called the same: two runs of one program differ by as much.

    Example: keelog bench compare before.json after.json --max-regression 10%
    """
    from keelog.bench.results import differences, regressions

    with doing(f"cannot compare {before} and {after}"):
        share = None if max_regression is None else share_of(max_regression)
        first, second = _read_result(before), _read_result(after)
        if first.kind != second.kind:
            raise BadRequest(
                f"one is a load {first.kind}, the other {second.kind}", "two of a kind"
            )
        found = list(differences(first, second))
        output.rows([one.row() for one in found])
    worse = [] if share is None else regressions(found, first.main, share)
    if worse:
        raise Partial("; ".join(worse), "keelog bench compare  without --max-regression")


def _read_result(path: Path) -> "Result":
    from keelog.bench.results import Result

    try:
        return Result.of(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise BadRequest(
            f"{path} is no result of keelog bench: {error}", "write one with --json FILE"
        ) from None


def run_load(kind: str, options: Options) -> None:
    """The whole command. Raises Partial for a broken limit, MqError for a lost message."""
    # Imported here: numpy and sockets, which `--help` does without.
    from keelog.bench.report import listening

    with doing(f"cannot run keelog bench {kind}"):
        load, limits = workload_of(kind, options), _values(options)
        if options["html_file"] is not None:
            from keelog.bench.report import check_pictures

            check_pictures()
        from keelog.bench.results import broken_limits
        from keelog.bench.running import run

        with ending_in_order(), listening() as listener:
            result = run(load, listener)
        result.limits_broken = broken_limits(result, limits)
        _write(result, options)
    with doing(f"keelog bench {kind} found what must not be"):
        if result.faults:
            raise MqError("; ".join(result.faults[:5]), "verify the store of --dir")
        if result.limits_broken:
            raise Partial("; ".join(result.limits_broken), "the same command without the limit")


def workload_of(kind: Any, said: Options) -> "Workload":
    """The workload of a command's options; what was not given keeps its default."""
    from keelog.bench.workload import Workload

    values = _values(said)
    known = {name: values[name] for name in Workload.__dataclass_fields__ if name in values}
    return Workload(kind=kind, settings=said.get("pairs", ()), **known)


def _values(said: Options) -> Options:
    """The values of the options that were given. Raises BadRequest, naming the option."""
    found = {}
    for name, text in said.items():
        if text is not None:
            try:
                found[name] = _READ_BY[name](text) if name in _READ_BY else text
            except BadRequest as error:
                option = f"--{name.replace('_', '-')}"
                raise BadRequest(f"{option}: {error.reason}", error.hint) from None
    return found


def _write(result: "Result", options: Options) -> None:
    files = {name: options[f"{name}_file"] for name in ("json", "csv", "html")}
    if STDOUT not in files.values():
        _show(result)
    _put(files["json"], lambda out: out.text(json.dumps(result.as_dict(), indent=2) + "\n"))
    rows = (
        {"stream": name, **{field: getattr(second, field) for field in second.__slots__}}
        for name, stream in result.streams.items()
        for second in stream.seconds
    )
    _put(files["csv"], lambda out: out.rows(rows))
    if files["html"] is not None:
        from keelog.bench.report import html_page

        page = html_page(result).encode()
        _put(files["html"], lambda out: out.raw(page))


def _put(file: Path | None, write: Callable[[Output], object]) -> None:
    if file == STDOUT:
        write(Output("csv"))
    elif file is not None:
        with file.open("wb") as stream:
            write(Output("csv", stream))


def _show(result: "Result") -> None:
    from keelog.bench.report import last_lines, process_rows, summary_rows

    output = Output("table")
    for rows in (summary_rows(result), process_rows(result)):
        if rows:
            output.rows(rows)
            output.text("\n")
    output.text("\n".join([*last_lines(result), ""]))
