"""How our pictures look, and how they become SVG text. Imports matplotlib."""

import io
import warnings
from collections.abc import Callable
from math import ceil, log2
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MultipleLocator

from protocol.human_text import size_text

COLOURS = ("#2f6690", "#e07a3f", "#3a9d7c", "#b5487d", "#8d7bc7", "#c2a83e", "#5b8c2a", "#7a5c48")
REST = "#b8bec7"
INK = "#26303b"
_STYLE = {
    # The browser has letters of scripts that matplotlib brings no font for.
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "text.parse_math": False,
    "font.size": 9,
    "axes.edgecolor": "#9aa4af",
    "axes.labelcolor": INK,
    "text.color": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#e3e7ec",
    "grid.linewidth": 0.8,
}


def legend(axes: Axes) -> None:
    """The names of what is drawn, in rows above the axes."""
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles, labels, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, frameon=False,
        fontsize=8, handlelength=1.0, handleheight=1.0, columnspacing=1.4,
    )  # fmt: skip


def in_bytes(axis: Any, highest: float) -> None:
    """Ticks of an axis that are powers of two: 512 KiB, 1 MiB, …; `highest` is its end."""
    step = 2.0 ** ceil(log2(max(highest, 4) / 5))
    axis.set_major_locator(MultipleLocator(step))
    axis.set_major_formatter(FuncFormatter(lambda value, _: size_text(value)))


def svg(draw: Callable[[Figure], Any], width: float, height: float) -> str:
    """What `draw` draws; inches."""
    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # Only the widths of such letters are guessed.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
