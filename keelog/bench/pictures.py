"""The pictures of a load's page, each as SVG text."""

import functools
from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from keelog.bench.report import NAMES, UNSHOWN
from keelog.bench.results import ProcessSample, Result, Stream
from keelog.pipeline.report import COLOURS, INK, in_bytes, legend, svg
from protocol.human_text import count_text

LOG_FROM = 30.0
"""From this ratio of the largest to the least on, latencies get a logarithmic axis."""
ROLES = ("send", "writer", "queue", "index", "reader", "follow", "find", "supervisor", "consume")
"""Each has a colour; those of one load differ."""
_WARM_UP = "#eef1f4"
_TICKS = (0, 50, 90, 99, 99.9, 99.99, 99.999, 99.9999)


def _chart(height: float) -> Callable[[Callable[[Result, Axes], None]], Callable[[Result], str]]:
    """Makes a picture, `height` inches high, of a function that draws on its axes."""

    def chart(draw: Callable[[Result, Axes], None]) -> Callable[[Result], str]:
        @functools.wraps(draw)
        def picture(result: Result) -> str:
            def whole(figure: Figure) -> None:
                axes = figure.subplots()
                draw(result, axes)
                legend(axes)

            return svg(whole, 10, height)

        return picture

    return chart


@_chart(3)
def throughput(result: Result, axes: Axes) -> None:
    """Messages a second over time, of each stream that counts some."""
    highest = 1.0
    for name, stream in _shown(result):
        if not stream.summary.messages:
            continue
        # A second is a step, so it has two points.
        times = [edge for one in stream.seconds for edge in (one.at - 1, one.at)]
        rates = [one.messages_per_s for one in stream.seconds for _ in (0, 1)]
        axes.plot(
            times, rates, color=_colour(result, name), linewidth=1.6, label=NAMES.get(name, name)
        )
        highest = max(highest, *rates)
    axes.set_ylim(0, highest * 1.08)
    axes.set_ylabel("messages / s")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value)))
    _over_time(axes, result)


@_chart(3)
def latency(result: Result, axes: Axes) -> None:
    """p50 and p99 of each second."""
    drawn: list[float] = []
    for name, stream in _shown(result):
        if stream.summary.p50_ms is None:
            continue
        for figure_name, width, style in (("p50_ms", 1.8, "-"), ("p99_ms", 1.2, "--")):
            values = [getattr(one, figure_name) for one in stream.seconds]
            drawn += [value for value in values if value]
            axes.plot(
                [one.at - 0.5 for one in stream.seconds],
                [float("nan") if value is None else value for value in values],
                color=_colour(result, name), linewidth=width, linestyle=style,
                marker=".", markersize=4,
                label=f"{NAMES.get(name, name)} {figure_name.removesuffix('_ms')}",
            )  # fmt: skip
    _ms_axis(axes, drawn)
    _over_time(axes, result)


@_chart(3.2)
def percentiles(result: Result, axes: Axes) -> None:
    """Latency at each percentile of the steady part; the axis stretches the upper end."""
    drawn: list[float] = []
    most = 1.0
    for name, stream in result.streams.items():
        points = stream.distribution
        inner = [(100 / (100 - percent), ms) for percent, ms in points if percent < 100]
        if not inner:
            continue
        places, values = zip(*inner, strict=True)
        axes.plot(
            places, values, color=_colour(result, name), linewidth=1.6, label=NAMES.get(name, name)
        )
        drawn += values
        most = max(most, places[-1])
    axes.set_xscale("log")
    ticks = [(100 / (100 - tick), f"{tick:g} %") for tick in _TICKS]
    shown = [one for one in ticks if one[0] <= most * 1.01]
    axes.set_xticks([place for place, _ in shown], [text for _, text in shown], minor=False)
    axes.minorticks_off()
    axes.set_xlim(1, max(most, 2.0))
    axes.set_xlabel("part of all messages that were at least as fast")
    _ms_axis(axes, drawn)


@_chart(2.4)
def lag(result: Result, axes: Axes) -> None:
    """The lag of each worker in bytes."""
    _bytes_lines(axes, result.looks, [one.lag for one in result.looks])
    axes.set_ylabel("behind the log")
    _over_time(axes, result)


@_chart(3.2)
def cpu(result: Result, axes: Axes) -> None:
    """Cores that each process uses, stacked; the line is what the machine has."""
    names = sorted(result.looks[-1].cpu, key=_role)
    times = [one.at for one in result.looks]
    series = [[one.cpu.get(name, 0.0) for one in result.looks] for name in names]
    colours = [_process_look(name)[0] for name in names]
    axes.stackplot(times, *series, labels=names, colors=colours, edgecolor="white", linewidth=0.5)
    cores = result.machine["cores"]
    axes.axhline(cores, color=INK, linewidth=1, linestyle=":")
    axes.set_ylim(0, cores * 1.15)
    axes.set_ylabel("cores")
    _over_time(axes, result)


@_chart(3)
def memory(result: Result, axes: Axes) -> None:
    """Memory of each process that is not backed by files."""
    looks = [one for one in result.looks if one.anon]
    _bytes_lines(axes, looks, [one.anon for one in looks])
    axes.set_ylabel("memory without files")
    _over_time(axes, result)


def _bytes_lines(
    axes: Axes, looks: Sequence[ProcessSample], values: Sequence[dict[str, int]]
) -> None:
    """A line for each process, of bytes."""
    names = list(dict.fromkeys(name for one in values for name in one))
    for name in sorted(names, key=_role):
        colour, style = _process_look(name)
        axes.plot(
            [look.at for look in looks], [one.get(name, float("nan")) for one in values],
            color=colour, linestyle=style, linewidth=1.6, label=name,
        )  # fmt: skip
    highest = max([1024, *(size for one in values for size in one.values())]) * 1.08
    axes.set_ylim(0, highest)
    in_bytes(axes.yaxis, highest)


def _role(name: str) -> tuple[int, str]:
    role = name.split()[0]
    return (ROLES.index(role) if role in ROLES else len(ROLES)), name


def _process_look(name: str) -> tuple[str, str]:
    """Colour by role, line by number."""
    number = int(name.split()[1]) if " " in name else 0
    return COLOURS[_role(name)[0] % len(COLOURS)], ("-", "--", ":", "-.")[number % 4]


def _colour(result: Result, stream: str) -> str:
    """A stream has one colour in all pictures."""
    return COLOURS[list(result.streams).index(stream) % len(COLOURS)]


def _shown(result: Result) -> list[tuple[str, Stream]]:
    return [(name, one) for name, one in result.streams.items() if name not in UNSHOWN]


def _over_time(axes: Axes, result: Result) -> None:
    """Seconds since the start; the warm-up is grey, kills are lines."""
    last = max([one.at for stream in result.streams.values() for one in stream.seconds] + [1.0])
    warm_up = result.workload["warm_up"]
    if warm_up:
        axes.axvspan(0, warm_up, color=_WARM_UP, zorder=0)
    for kill in result.checks.get("kills", ()):
        axes.axvline(kill["at"], color=INK, linewidth=0.6, alpha=0.5, zorder=0)
    axes.set_xlim(0, last)
    axes.set_xlabel("seconds")


def _ms_axis(axes: Axes, drawn: Sequence[float]) -> None:
    if drawn and min(drawn) > 0 and max(drawn) / min(drawn) > LOG_FROM:
        axes.set_yscale("log")
    else:
        axes.set_ylim(0, max([*drawn, 1e-3]) * 1.08)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axes.set_ylabel("ms")
