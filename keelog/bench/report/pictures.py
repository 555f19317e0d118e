"""The pictures of a load's page, each as SVG text."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from keelog.bench.report.text_report import NAMES, UNSHOWN
from keelog.bench.results import ProcessSample, Result, Second
from pipeline.report.picture import COLOURS, INK, in_bytes, legend, svg
from protocol.printable import count_text

LOG_FROM = 30.0
"""From this ratio of the largest to the least on, latencies get a logarithmic axis."""
ROLES = ("send", "writer", "queue", "index", "reader", "follow", "find", "supervisor", "consume")
"""Each has a colour; those of one load differ."""
_WARM_UP = "#eef1f4"
_TICKS = (0, 50, 90, 99, 99.9, 99.99, 99.999, 99.9999)


def throughput(result: Result) -> str:
    """Messages a second over time, of each stream that counts some."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        highest = 1.0
        for name, seconds in _counted(result):
            times, rates = _edges(seconds, [one.messages_per_s for one in seconds])
            axes.plot(
                times,
                rates,
                color=_colour(result, name),
                linewidth=1.6,
                label=NAMES.get(name, name),
            )
            highest = max(highest, *rates)
        axes.set_ylim(0, highest * 1.08)
        axes.set_ylabel("messages / s")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value)))
        _over_time(axes, result)
        legend(axes)

    return svg(draw, 10, 3)


def latency(result: Result) -> str:
    """p50 and p99 of each second."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        drawn: list[float] = []
        for name, seconds in _timed(result):
            for figure_name, width, style in (("p50_ms", 1.8, "-"), ("p99_ms", 1.2, "--")):
                values = [getattr(one, figure_name) for one in seconds]
                drawn += [value for value in values if value]
                axes.plot(
                    [one.at - 0.5 for one in seconds],
                    [float("nan") if value is None else value for value in values],
                    color=_colour(result, name), linewidth=width, linestyle=style,
                    marker=".", markersize=4,
                    label=f"{NAMES.get(name, name)} {figure_name.removesuffix('_ms')}",
                )  # fmt: skip
        _ms_axis(axes, drawn)
        _over_time(axes, result)
        legend(axes)

    return svg(draw, 10, 3)


def percentiles(result: Result) -> str:
    """Latency at each percentile of the steady part; the axis stretches the upper end."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        drawn: list[float] = []
        most = 1.0
        for name, stream in result.streams.items():
            points = stream.distribution
            inner = [(100 / (100 - percent), ms) for percent, ms in points if percent < 100]
            if not inner:
                continue
            places, values = zip(*inner, strict=True)
            axes.plot(
                places, values, color=_colour(result, name), linewidth=1.6,
                label=NAMES.get(name, name),
            )  # fmt: skip
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
        legend(axes)

    return svg(draw, 10, 3.2)


def lag(result: Result) -> str:
    """The lag of each worker in bytes."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        _lines(axes, result.looks, [one.lag for one in result.looks])
        _bytes_axis(axes, [size for one in result.looks for size in one.lag.values()])
        axes.set_ylabel("behind the log")
        _over_time(axes, result)
        legend(axes)

    return svg(draw, 10, 2.4)


def cpu(result: Result) -> str:
    """Cores that each process uses, stacked; the line is what the machine has."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        names = sorted(result.looks[-1].cpu, key=_role)
        times = [one.at for one in result.looks]
        series = [[one.cpu.get(name, 0.0) for one in result.looks] for name in names]
        colours = [_process_look(name)[0] for name in names]
        axes.stackplot(
            times, *series, labels=names, colors=colours, edgecolor="white", linewidth=0.5
        )
        cores = result.machine["cores"]
        axes.axhline(cores, color=INK, linewidth=1, linestyle=":")
        axes.set_ylim(0, cores * 1.15)
        axes.set_ylabel("cores")
        _over_time(axes, result)
        legend(axes)

    return svg(draw, 10, 3.2)


def memory(result: Result) -> str:
    """Memory of each process that is not backed by files."""

    def draw(figure: Figure) -> None:
        axes = figure.subplots()
        looks = [one for one in result.looks if one.anon]
        _lines(axes, looks, [one.anon for one in looks])
        _bytes_axis(axes, [size for one in looks for size in one.anon.values()])
        axes.set_ylabel("memory without files")
        _over_time(axes, result)
        legend(axes)

    return svg(draw, 10, 3)


def _lines(axes: Axes, looks: Sequence[ProcessSample], values: Sequence[dict[str, int]]) -> None:
    names = list(dict.fromkeys(name for one in values for name in one))
    for name in sorted(names, key=_role):
        colour, style = _process_look(name)
        axes.plot(
            [look.at for look in looks], [one.get(name, float("nan")) for one in values],
            color=colour, linestyle=style, linewidth=1.6, label=name,
        )  # fmt: skip


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


def _bytes_axis(axes: Axes, drawn: Sequence[int]) -> None:
    highest = max([*drawn, 1024]) * 1.08
    axes.set_ylim(0, highest)
    in_bytes(axes.yaxis, highest)


def _counted(result: Result) -> list[tuple[str, list[Second]]]:
    return [
        (name, one.seconds)
        for name, one in result.streams.items()
        if name not in UNSHOWN and one.summary.messages
    ]


def _timed(result: Result) -> list[tuple[str, list[Second]]]:
    return [
        (name, one.seconds)
        for name, one in result.streams.items()
        if name not in UNSHOWN and one.summary.p50_ms is not None
    ]


def _edges(seconds: Sequence[Second], values: Sequence[float]) -> tuple[list[float], list[float]]:
    """A second is a step, so it has two points."""
    times = [edge for one in seconds for edge in (one.at - 1, one.at)]
    return times, [value for value in values for _ in (0, 1)]


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
