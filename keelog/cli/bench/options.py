"""Options of the commands of `keelog bench`, and how they become a workload and limits."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from keelog.cli.options import options, settings_options
from protocol.errors import BadRequest
from protocol.human_text import bytes_of, count_of, seconds_of

if TYPE_CHECKING:
    from keelog.bench.limits import RunLimits
    from keelog.bench.workload import Workload

Options = dict[str, Any]
CALLERS = ("threads", "tasks", "inflight", "batches")


class _ResultFile(click.Path):
    """A file that may be written. A missing folder is an error before the load, not after it."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        file = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not file.parent.is_dir():
            self.fail(f"there is no folder {str(file.parent)!r}; make it first", param, ctx)
        return file


_WRITABLE = _ResultFile(dir_okay=False, writable=True, allow_dash=True)


sending_options = options(
    click.option(
        "--callers",
        type=click.Choice(CALLERS),
        help="threads, tasks: each waits for each answer; inflight: one producer that goes on;"
        " batches: the same with batches.",
    ),
    click.option("--producers", type=int, metavar="N", help="Callers that wait, in all."),
    click.option("--processes", type=int, metavar="N", help="Processes that send."),
    click.option(
        "--in-flight",
        type=int,
        metavar="N",
        help="Messages or batches without an answer, of each process.",
    ),
    click.option("--batch", type=int, metavar="N", help="Messages of a batch."),
    click.option(
        "--acks", type=click.Choice(("appended", "flushed")), help="flushed: on the disk."
    ),
    click.option(
        "--rate",
        metavar="N",
        help="Messages/s of all together, as 20K; latency counts from the intended time."
        " Default: full speed.",
    ),
)
"""How producers send."""
reading_options = options(
    click.option("--consumers", type=int, metavar="N", help="Processes that read."),
    click.option("--pull-messages", type=int, metavar="N", help="Of one pull, at most."),
    click.option("--pull-bytes", metavar="SIZE", help="Of one pull, at most."),
)
"""How consumers read."""
output_and_limit_options = options(
    click.option("--json", "json_file", type=_WRITABLE, metavar="FILE", help="-: stdout."),
    click.option(
        "--csv", "csv_file", type=_WRITABLE, metavar="FILE", help="A line a second; -: stdout."
    ),
    click.option(
        "--html", "html_file", type=_WRITABLE, metavar="FILE", help="A page with pictures."
    ),
    click.option("--max-p50", metavar="TIME", help="As 1ms; beyond it: exit code 7."),
    click.option("--max-p99", metavar="TIME", help="As 5ms."),
    click.option("--max-p999", metavar="TIME", help="As 50ms."),
    click.option("--min-rate", metavar="N", help="Messages/s, as 100K."),
    click.option("--max-cpu", metavar="S", help="CPU seconds per million messages."),
)
"""The files of the result, and the limits that it must keep."""
message_options = options(
    click.option("--body", metavar="SIZE", help="128, 1KiB, uniform:100-2000, lognormal:512."),
    click.option("--topics", type=int, metavar="N", help="Topics, taken in turn."),
    click.option("--queues", type=int, metavar="N", help="Queues of each topic."),
    click.option("--keys", type=int, metavar="N", help="Keys of each message."),
    click.option("--tags", metavar="TAG", help="The tag of each message."),
)
"""The messages."""
time_options = options(
    click.option("--duration", metavar="TIME", help="Behind the warm-up: 10s, 5m."),
    click.option("--count", metavar="N", help="So many messages instead, as 1M."),
    click.option("--warm-up", metavar="TIME", help="Left out of the steady figures."),
    click.option("--timeout", metavar="TIME", help="Of each request."),
)
"""How long."""
place_options = options(
    settings_options,
    click.option("--node", metavar="URL", help="A node that runs; default: a new one."),
    click.option(
        "--dir",
        "directory",
        type=click.Path(file_okay=False),
        metavar="DIR",
        help="The new node's folder, kept; default: a temporary one, removed.",
    ),
    click.option("--queue-workers", type=int, metavar="N", help="Of the new node."),
    click.option("--readers", type=int, metavar="N", help="Of the new node."),
)
"""The node under load: one that runs, or one that is started."""
load_options = options(message_options, time_options, place_options, output_and_limit_options)
"""Of every load on a node."""

_READ_BY: dict[str, Callable[[str], float]] = {
    **dict.fromkeys(("count", "stored"), lambda text: int(count_of(text))),
    **dict.fromkeys(("rate", "min_rate", "finds", "max_cpu"), count_of),
    **dict.fromkeys(("duration", "warm_up", "timeout", "kill_every"), seconds_of),
    **dict.fromkeys(("max_p50", "max_p99", "max_p999"), seconds_of),
    "pull_bytes": bytes_of,
}
"""How the text of an option becomes its value; others are values already."""


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


def workload_of(kind: Any, said: Options) -> "Workload":
    """The workload of a command's options; what was not given keeps its default."""
    from keelog.bench.workload import Workload

    values = _values(said)
    known = {name: values[name] for name in Workload.__dataclass_fields__ if name in values}
    return Workload(kind=kind, settings=said.get("pairs", ()), **known)


def limits_of(said: Options) -> "RunLimits":
    """The limits of a command's options."""
    from keelog.bench.limits import RunLimits

    values = _values(said)
    limits = ("max_p50", "max_p99", "max_p999", "min_rate", "max_cpu")
    return RunLimits(*map(values.get, limits))
