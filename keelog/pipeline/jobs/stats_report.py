"""The figures of a store as one HTML page that needs nothing else: pictures and tables.

Each picture is SVG text.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial

from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter, date2num
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator

from keelog.pipeline import report
from keelog.pipeline.jobs.stats import OTHER, Figures, Row
from keelog.pipeline.report import COLOURS, section
from protocol.human_text import count_text, size_text

_STACKED_MAX = 7
_LABEL_CHARS_MAX = 34
_BARS_MAX = 20
_WINDOWS_DRAWN_MAX = 500
_TIME_MS_MAX = 250_000_000_000_000
"""Matplotlib draws no times after the year 9999."""


def render(figures: Figures, title: str) -> str:
    """The page. Pictures of what a store has nothing of are left out."""
    sections = _sections(figures) if figures.totals["messages"] else []
    return report.page(title, _span(figures.totals), _cards(figures.totals), sections)


def _sections(figures: Figures) -> list[str]:
    topics = _height(len(figures.topics))
    rates = report.svg(partial(_throughput, figures), 10, 5.2) if figures.rates else ""
    line = f"By store time (UTC), in windows of {figures.window.interval}."
    even = "Each dot is a queue. On the line it has as many messages as the topic's others."
    sections = [
        section("Throughput", line, rates),
        section("Sizes", "Messages by size.", report.svg(partial(_sizes, figures), 10, 3.2)),
        section("Largest topics", "", report.svg(partial(_top_topics, figures), 10, topics)),
        section("Skew", even, report.svg(partial(_skew, figures), 10, topics + 0.3)),
    ]
    if figures.tags:
        sections += [
            section("Tags", "With their topics.", _top_names(figures.tags, "tag", COLOURS[3])),
            section("Tags over time", "", report.svg(partial(_tags_over_time, figures), 10, 3.2)),
        ]
    if figures.keys:
        keys = _top_names(figures.keys, "key", COLOURS[4])
        sections.append(section("Keys", "With their topics.", keys))
    sections.append(
        section("Topics in figures", "", report.table(report.topic_rows(figures.topics)))
    )
    return sections


def _cards(totals: Row) -> dict[str, str]:
    return {
        "messages": f"{totals['messages']:,}",
        "bytes": size_text(totals["bytes"]),
        "topics": str(totals["topics"]),
        "queues": str(totals["queues"]),
        "messages a second": report.rate_text(totals["per_second"]),
        "with a tag": report.percent_text(totals["tagged"], totals["messages"]),
        "with a key": report.percent_text(totals["keyed"], totals["messages"]),
    }


def _span(totals: Row) -> str:
    if totals["first"] is None:
        return "No message."
    first, last = report.time_text(totals["first"]), report.time_text(totals["last"])
    return f"Messages stored from {first} to {last} UTC."


def _throughput(figures: Figures, figure: Figure) -> None:
    """Messages and bytes a second over store time, stacked by topic."""
    counts, sizes = figure.subplots(2, 1, sharex=True)
    _stack(counts, figures, "messages", "topic")
    _stack(sizes, figures, "bytes", "topic")
    counts.set_ylabel("messages / s")
    sizes.set_ylabel("bytes / s")
    report.in_bytes(sizes.yaxis, sizes.get_ylim()[1])
    report.legend(counts)


def _tags_over_time(figures: Figures, figure: Figure) -> None:
    axes = figure.subplots()
    _stack(axes, figures, "messages", "tag")
    axes.set_ylabel("messages / s")
    report.legend(axes)


def _sizes(figures: Figures, figure: Figure) -> None:
    """How many messages are of which size; each bar is one class of sizes."""
    axes = figure.subplots()
    starts = [row["size_from"] for row in figures.sizes]
    counts = [row["messages"] for row in figures.sizes]
    step = 2**0.5
    axes.bar(
        starts, counts, [start * (step - 1) for start in starts],
        align="edge", color=COLOURS[0], edgecolor="white", linewidth=0.6,
    )  # fmt: skip
    axes.set_xscale("log", base=2)
    # A single class would else be as wide as the picture.
    axes.set_xlim(min(starts, default=64) / 2, max(starts, default=64) * 4)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: size_text(value)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value)))
    axes.set_xlabel("size of the whole record")
    axes.set_ylabel("messages")
    axes.grid(visible=False, axis="x")


def _top_topics(figures: Figures, figure: Figure) -> None:
    rows = figures.topics[:_BARS_MAX]
    left, right = figure.subplots(1, 2, sharey=True)
    labels = [_short(row["topic"]) for row in rows]
    _bars(left, labels, [row["messages"] for row in rows], count_text, COLOURS[0])
    _bars(right, labels, [row["bytes"] for row in rows], size_text, COLOURS[2])
    left.set_title("messages", fontsize=9)
    right.set_title("bytes", fontsize=9)
    right.tick_params(left=False)


def _top_names(rows: Sequence[Row], name: str, colour: str) -> str:
    """The tags or keys with the most messages."""
    shown = rows[:_BARS_MAX]
    labels = [f"{_short(row[name])}  ({_short(row['topic'])})" for row in shown]
    counts = [row["messages"] for row in shown]
    return report.svg(
        lambda figure: _bars(figure.subplots(), labels, counts, count_text, colour),
        10,
        _height(len(rows)),
    )


def _skew(figures: Figures, figure: Figure) -> None:
    """How evenly each topic's messages lie in its queues: a dot a queue, 1 is even."""
    axes = figure.subplots()
    topics = [row["topic"] for row in figures.topics[:_BARS_MAX]]
    place = {topic: number for number, topic in enumerate(topics)}
    found = [row for row in figures.queues if row["topic"] in place]
    axes.axvline(1, color=COLOURS[2], linewidth=1.2, zorder=1)
    axes.scatter(
        [row["evenness"] for row in found],
        [place[row["topic"]] for row in found],
        s=26, color=COLOURS[0], alpha=0.55, linewidths=0, zorder=2,
    )  # fmt: skip
    for topic, number in place.items():
        fullest = max(
            (row for row in found if row["topic"] == topic), key=lambda row: row["evenness"]
        )
        axes.annotate(
            f"queue {fullest['queue_id']}: {fullest['evenness']:.2f}",
            (fullest["evenness"], number),
            xytext=(7, 0), textcoords="offset points", va="center", fontsize=8,
        )  # fmt: skip
    axes.set_yticks(range(len(topics)), [_short(topic) for topic in topics])
    axes.set_ylim(len(topics) - 0.5, -0.5)
    axes.set_xlim(0, max([row["evenness"] for row in found] + [1.2]) * 1.18)
    axes.set_xlabel("messages of a queue, over an even share")


def _stack(axes: Axes, figures: Figures, what: str, by: str) -> None:
    rows = figures.rates if by == "topic" else figures.tag_rates
    step = figures.window.ms
    by_name: dict[str, dict[int, float]] = defaultdict(lambda: defaultdict(float))
    totals: dict[str, int] = defaultdict(int)
    for row in rows:
        if row["start"] is not None:
            name = row[by] if row[by] is not None else f"(no {by})"
            by_name[name][row["start"]] += row[what] * 1000 / step
            totals[name] += row[what]
    names = sorted((name for name in totals if name != OTHER), key=lambda name: -totals[name])
    shown, rest = names[:_STACKED_MAX], names[_STACKED_MAX:]
    rest += [OTHER] if OTHER in totals else []
    windows = _windows({start for series in by_name.values() for start in series}, step)
    if not windows:
        return
    labels, colours = [_short(name) for name in shown], list(COLOURS[: len(shown)])
    stacked = [[name] for name in shown]
    if rest:
        stacked, labels, colours = [*stacked, rest], [*labels, "others"], [*colours, report.REST]
    # Each window is a step, so it has two points.
    edges = [edge for start in windows for edge in (start, start + step)]
    series = [
        [sum(by_name[name][start] for name in several) for start in windows for _ in (0, 1)]
        for several in stacked
    ]
    times = [date2num(datetime.fromtimestamp(edge / 1000, UTC)) for edge in edges]
    axes.stackplot(times, *series, labels=labels, colors=colours, linewidth=0)
    axes.set_xlim(times[0], times[-1])
    axes.set_ylim(bottom=0)
    locator = AutoDateLocator(tz=UTC)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: count_text(value)))


def _windows(starts: set[int], step: int) -> list[int]:
    """All windows, those without a message too; times far from all others do not stretch them."""
    known = [start for start in starts if 0 <= start < _TIME_MS_MAX]
    if not known:
        return []
    first = max(min(known), max(known) - _WINDOWS_DRAWN_MAX * step)
    return list(range(first, max(known) + step, step))


def _bars(
    axes: Axes,
    labels: Sequence[str],
    values: Sequence[float],
    text: Callable[[float], str],
    colour: str,
) -> None:
    places = range(len(values))
    axes.barh(places, values, height=0.68, color=colour)
    for place, value in zip(places, values, strict=True):
        axes.annotate(
            text(value), (value, place), xytext=(4, 0), textcoords="offset points", va="center",
            fontsize=8,
        )  # fmt: skip
    axes.set_yticks(places, labels)
    axes.set_ylim(len(values) - 0.4, -0.6)
    axes.set_xlim(0, max([*values, 1]) * 1.14)
    if text is size_text:
        report.in_bytes(axes.xaxis, max([*values, 1]))
    else:
        axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: text(value)))
    axes.grid(visible=False, axis="y")


def _height(bars: int) -> float:
    return 0.9 + 0.26 * max(min(bars, _BARS_MAX), 2)


def _short(name: str) -> str:
    text = "".join(sign if sign.isprintable() else "?" for sign in name)
    return text if len(text) <= _LABEL_CHARS_MAX else f"{text[: _LABEL_CHARS_MAX - 1]}…"
