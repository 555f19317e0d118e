"""Points of scripts/bench/flatness.py as tables and as one picture."""

from collections.abc import Sequence
from pathlib import Path

from scripts.bench.flatness_points import Point
from scripts.rivals.table import grid, number

COLUMNS = (
    ("batches_per_s", "batches, /s"),
    ("spread_per_s", "to all queues, /s"),
    ("cpu_s_per_million", "CPU s per million"),
    ("send_p50_ms", "send p50, ms"),
    ("send_p99_ms", "p99"),
    ("end_to_end_p50_ms", "end to end p50, ms"),
    ("end_to_end_p99_ms", "p99"),
    ("idle_cores", "idle, cores"),
    ("pss_mib", "memory, MiB"),
    ("handles", "file handles"),
)
DRAWN = (
    ("batches_per_s", "batches of 100 x 128 B, messages / s"),
    ("send_p99_ms", "one caller that waits, p99 ms"),
    ("end_to_end_p50_ms", "end to end at 1,000/s, p50 ms"),
    ("pss_mib", "memory of all processes, MiB"),
)


def text_of(value: float | None) -> str:
    """Three digits that count."""
    return "" if value is None else number(value, "")


def table(points: Sequence[Point], *, markdown: bool = False) -> str:
    """A table for each part; of the last point of each, what every process holds."""
    parts = []
    for part in dict.fromkeys(point.part for point in points):
        mine = [point for point in points if point.part == part]
        shown = [one for one in COLUMNS if any(one[0] in point.figures for point in mine)]
        head = [f"{part}: {mine[0].unit}", *(title for _, title in shown)]
        rows = [
            [f"{point.size:,g}", *(text_of(point.figures.get(name)) for name, _ in shown)]
            for point in mine
        ]
        parts += [grid(head, rows, markdown=markdown), held_by_each(mine[-1])]
    return "\n\n".join(parts)


def held_by_each(point: Point) -> str:
    """One sentence: memory and handles of each process at a point."""
    handles = point.figures["handles_of"]
    each = [
        f"{name} {text_of(mib)} MiB, {handles[name]} handles"
        for name, mib in point.figures["pss_mib_of"].items()
    ]
    return f"At {point.size:,g} {point.unit}: {'; '.join(each)}."


def write_picture(points: Sequence[Point], path: Path) -> None:
    """A row of axes for each figure, a column for each part; all begin at zero."""
    # Here, so that the figures can be made where there is no matplotlib.
    from matplotlib.figure import Figure

    parts = list(dict.fromkeys(point.part for point in points))
    figure = Figure(figsize=(3.4 * len(parts), 2.4 * len(DRAWN)))
    axes = figure.subplots(len(DRAWN), len(parts), squeeze=False, sharey="row")
    for row, (name, title) in enumerate(DRAWN):
        most = max([point.figures[name] for point in points if name in point.figures] or [1.0])
        for one, part in zip(axes[row], parts, strict=True):
            mine = [p for p in points if p.part == part and name in p.figures]
            if not mine:
                one.set_axis_off()
                continue
            labels = [f"{point.size:,g}" for point in mine]
            one.plot(labels, [point.figures[name] for point in mine], marker="o")
            one.set_ylim(0, most * 1.08)
            one.set_xlabel(mine[0].unit, fontsize=8)
            one.tick_params(labelsize=8)
        axes[row][0].set_title(title, fontsize=9, loc="left")
    figure.subplots_adjust(0.08, 0.06, 0.98, 0.96, wspace=0.1, hspace=0.5)
    figure.savefig(path)
