"""`keelog bench compare`: two results, figure by figure."""

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

from keelog.cli.failures import OK, Partial, doing
from keelog.cli.options import command, output_options
from keelog.cli.output import Output
from protocol.errors import BadRequest
from protocol.human_text import share_of

if TYPE_CHECKING:
    from keelog.bench.results import Result

_FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@command("compare")
@click.argument("before", type=_FILE)
@click.argument("after", type=_FILE)
@click.option(
    "--max-regression", metavar="SHARE",
    help="As 10%: exit code 7 when rate, p50, p99 or CPU got worse by more.",
)  # fmt: skip
@output_options
def compare(before: Path, after: Path, max_regression: str | None, output: Output) -> int:
    """Compares two results of --json: ratio and verdict for each figure.

    Ratios within 5 % are called the same: two runs of one program differ by as much.

    Example: keelog bench compare before.json after.json --max-regression 10%
    """
    from keelog.bench.limits import differences, regressions

    with doing(f"cannot compare {before} and {after}"):
        share = None if max_regression is None else share_of(max_regression)
        first, second = _read(before), _read(after)
        if first.kind != second.kind:
            raise BadRequest(
                f"one is a load {first.kind}, the other {second.kind}", "two of a kind"
            )
        found = list(differences(first, second))
        output.rows([one.row() for one in found])
    worse = [] if share is None else regressions(found, first.main, share)
    if worse:
        raise Partial("; ".join(worse), "keelog bench compare  without --max-regression")
    return OK


def _read(path: Path) -> "Result":
    from keelog.bench.results import Result

    try:
        return Result.of(json.loads(path.read_text()))
    except (ValueError, KeyError, TypeError) as error:
        raise BadRequest(
            f"{path} is no result of keelog bench: {error}", "write one with --json FILE"
        ) from None
