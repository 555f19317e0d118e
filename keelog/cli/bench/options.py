"""What the commands of `keelog bench` share: options, and how they become a workload and limits."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from keelog.cli.options import settings_options
from protocol.errors import BadRequest

if TYPE_CHECKING:
    from keelog.bench.limits import RunLimits
    from keelog.bench.workload import Workload

Function = TypeVar("Function", bound=Callable[..., Any])
Options = dict[str, Any]
CALLERS = ("threads", "tasks", "inflight", "batches")


class _ResultFile(click.Path):
    """A file that may be written. A result that has nowhere to go is told before the load."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        file = Path(os.fsdecode(super().convert(value, param, ctx)))
        if not file.parent.is_dir():
            self.fail(f"there is no folder {str(file.parent)!r}; make it first", param, ctx)
        return file


_WRITABLE = _ResultFile(dir_okay=False, writable=True, allow_dash=True)


def _all(function: Function, options: list[Callable[[Function], Function]]) -> Function:
    for option in reversed(options):
        function = option(function)
    return function


def place_options(function: Function) -> Function:
    """Where the load goes: a node that runs, or one that is started."""
    return settings_options(
        _all(
            function,
            [
                click.option("--node", metavar="URL", help="A node that runs; default: a new one."),
                click.option(
                    "--dir", "directory", type=click.Path(file_okay=False), metavar="DIR",
                    help="The new node's folder, kept; default: a temporary one, removed.",
                ),
                click.option("--queue-workers", type=int, metavar="N", help="Of the new node."),
                click.option("--readers", type=int, metavar="N", help="Of the new node."),
            ],
        )
    )  # fmt: skip


def message_options(function: Function) -> Function:
    """What the messages are."""
    return _all(
        function,
        [
            click.option(
                "--body", metavar="SIZE", help="128, 1KiB, uniform:100-2000, lognormal:512."
            ),
            click.option("--topics", type=int, metavar="N", help="Topics, taken in turn."),
            click.option("--queues", type=int, metavar="N", help="Queues of each topic."),
            click.option("--keys", type=int, metavar="N", help="Keys of each message."),
            click.option("--tags", metavar="TAG", help="The tag of each message."),
        ],
    )  # fmt: skip


def sending_options(function: Function) -> Function:
    """How producers send."""
    return _all(
        function,
        [
            click.option(
                "--callers", type=click.Choice(CALLERS),
                help="threads, tasks: each waits for each answer; inflight: one producer that"
                " goes on; batches: the same with batches.",
            ),
            click.option("--producers", type=int, metavar="N", help="Callers that wait, in all."),
            click.option("--processes", type=int, metavar="N", help="Processes that send."),
            click.option(
                "--in-flight", type=int, metavar="N",
                help="Messages or batches without an answer, of each process.",
            ),
            click.option("--batch", type=int, metavar="N", help="Messages of a batch."),
            click.option(
                "--acks", type=click.Choice(("appended", "flushed")), help="flushed: on the disk."
            ),
            click.option("--rate", metavar="N", help="Messages/s of all together, as 20K;"
                         " latency counts from the intended time. Default: full speed."),
        ],
    )  # fmt: skip


def reading_options(function: Function) -> Function:
    """How consumers read."""
    return _all(
        function,
        [
            click.option("--consumers", type=int, metavar="N", help="Processes that read."),
            click.option("--pull-messages", type=int, metavar="N", help="Of one pull, at most."),
            click.option("--pull-bytes", metavar="SIZE", help="Of one pull, at most."),
        ],
    )


def time_options(function: Function) -> Function:
    """How long."""
    return _all(
        function,
        [
            click.option("--duration", metavar="TIME", help="Behind the warm-up: 10s, 5m."),
            click.option("--count", metavar="N", help="So many messages instead, as 1M."),
            click.option("--warm-up", metavar="TIME", help="Left out of the steady figures."),
            click.option("--timeout", metavar="TIME", help="Of each request."),
        ],
    )


def output_and_limit_options(function: Function) -> Function:
    """Where the result goes, and what it must keep."""
    return _all(
        function,
        [
            click.option("--json", "json_file", type=_WRITABLE, metavar="FILE", help="-: stdout."),
            click.option(
                "--csv", "csv_file", type=_WRITABLE, metavar="FILE",
                help="A line a second; -: stdout.",
            ),
            click.option(
                "--html", "html_file", type=_WRITABLE, metavar="FILE", help="A page with pictures."
            ),
            click.option("--max-p50", metavar="TIME", help="As 1ms; beyond it: exit code 7."),
            click.option("--max-p99", metavar="TIME", help="As 5ms."),
            click.option("--max-p999", metavar="TIME", help="As 50ms."),
            click.option("--min-rate", metavar="N", help="Messages/s, as 100K."),
            click.option("--max-cpu", metavar="S", help="CPU seconds per million messages."),
        ],
    )  # fmt: skip


_UNITS = {
    "rate": "count", "count": "count", "stored": "count", "min_rate": "count", "finds": "count",
    "duration": "time", "warm_up": "time", "timeout": "time", "kill_every": "time",
    "max_p50": "time", "max_p99": "time", "max_p999": "time", "pull_bytes": "size",
}  # fmt: skip
_WHOLE = ("count", "stored")


def _value(name: str, text: Any) -> Any:
    from keelog.bench.units import bytes_of, count_of, seconds_of

    ways: dict[str, Callable[[str], float]] = {
        "count": count_of,
        "time": seconds_of,
        "size": bytes_of,
    }
    kind = _UNITS.get(name)
    if kind is None:
        return text
    try:
        value = ways[kind](text)
    except BadRequest as error:
        raise BadRequest(f"--{name.replace('_', '-')}: {error.reason}", error.hint) from None
    return int(value) if name in _WHOLE else value


def workload_of(kind: Any, options: Options) -> "Workload":
    """The workload of a command's options; what was not said keeps its default."""
    from keelog.bench.workload import Workload

    said = {name: _value(name, text) for name, text in options.items() if text is not None}
    known = {name: said[name] for name in Workload.__dataclass_fields__ if name in said}
    return Workload(kind=kind, settings=options.get("pairs", ()), **known)


def limits_of(options: Options) -> "RunLimits":
    """The limits of a command's options."""
    from keelog.bench.limits import RunLimits

    said = {name: _value(name, text) for name, text in options.items() if text is not None}
    cpu = said.get("max_cpu")
    return RunLimits(
        said.get("max_p50"),
        said.get("max_p99"),
        said.get("max_p999"),
        said.get("min_rate"),
        None if cpu is None else float(cpu),
    )
