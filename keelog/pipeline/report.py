"""How our reports look: an HTML page that needs nothing else, figures for people, pictures as SVG.

matplotlib is imported where a picture is drawn: tables need none.
"""

import io
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from html import escape
from math import ceil, log2
from typing import TYPE_CHECKING, Any

from protocol.human_text import count_text, size_text

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

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
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 15px/1.45 system-ui, sans-serif; color: #26303b; background: #f6f7f9; margin: 0; }}
main {{ max-width: 1040px; margin: 0 auto; padding: 28px 20px 60px; }}
h1 {{ font-size: 24px; margin: 0 0 2px; overflow-wrap: anywhere; }}
h2 {{ font-size: 16px; margin: 0 0 2px; }}
p {{ color: #5d6875; margin: 0 0 14px; }}
section, .cards div {{ background: white; border: 1px solid #e3e7ec; border-radius: 8px; }}
section {{ padding: 16px 18px; margin-top: 16px; }}
.cards {{ display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 12px; }}
.cards div {{ padding: 10px 14px; }}
.cards b {{ display: block; font-size: 21px; font-weight: 600; }}
.cards span {{ color: #5d6875; font-size: 13px; }}
svg {{ width: 100%; height: auto; }}
.wide {{ overflow-x: auto; }}
table {{ border-collapse: collapse; font-size: 13px; width: 100%; }}
th, td {{ text-align: right; padding: 4px 10px; white-space: nowrap; }}
tr {{ border-bottom: 1px solid #edf0f3; }}
th:first-child, td:first-child {{ text-align: left; }}
</style>
</head>
<body><main>
<h1>{title}</h1>
<p>{span}</p>
<div class="cards">{cards}</div>
{sections}
</main></body>
</html>
"""


def topic_rows(topics: Iterable[Mapping[str, Any]]) -> list[dict[str, str]]:
    """The figures of topics as people read them."""
    return [
        {
            "topic": row["topic"],
            "queues": str(row["queues"]),
            "messages": f"{row['messages']:,}",
            "bytes": size_text(row["bytes"]),
            "per second": rate_text(row["per_second"]),
            "median": size_text(row["size_median"]),
            "p99": size_text(row["size_p99"]),
            "largest": size_text(row["size_max"]),
            "tagged": percent_text(row["tagged"], row["messages"]),
            "keyed": percent_text(row["keyed"], row["messages"]),
            "skew": f"{row['skew']:.2f}",
            "first": time_text(row["first"]),
            "last": time_text(row["last"]),
        }
        for row in topics
    ]


def rate_text(value: float | None) -> str:
    """A count a second; a dash where no time has passed."""
    return "-" if value is None else count_text(value)


def percent_text(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f} %" if whole else "-"


def time_text(ms: int | None) -> str:
    """A time in UTC, to the second; ms where it is after the year 9999."""
    if ms is None:
        return "-"
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")
    except (ValueError, OverflowError, OSError):
        return str(ms)


def page(title: str, line: str, cards: Mapping[str, str], sections: Sequence[str]) -> str:
    """A page; `cards` are values by the words below them, `sections` are HTML."""
    shown = "".join(
        f"<div><b>{escape(text)}</b><span>{escape(name)}</span></div>"
        for name, text in cards.items()
    )
    return _PAGE.format(
        title=escape(title), span=escape(line), cards=shown, sections="\n".join(sections)
    )


def section(title: str, line: str, content: str) -> str:
    """A box with a heading, a line of text and HTML."""
    text = f"<p>{escape(line)}</p>" if line else ""
    return f"<section><h2>{escape(title)}</h2>{text}<div class='wide'>{content}</div></section>"


def table(rows: Sequence[dict[str, str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in (rows[0] if rows else ()))
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row.values()) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def legend(axes: "Axes") -> None:
    """The names of what is drawn, in rows above the axes."""
    handles, labels = axes.get_legend_handles_labels()
    axes.legend(
        handles, labels, loc="lower left", bbox_to_anchor=(0, 1.0), ncols=4, frameon=False,
        fontsize=8, handlelength=1.0, handleheight=1.0, columnspacing=1.4,
    )  # fmt: skip


def in_bytes(axis: Any, highest: float) -> None:
    """Ticks of an axis that are powers of two: 512 KiB, 1 MiB, …; `highest` is its end."""
    from matplotlib.ticker import FuncFormatter, MultipleLocator

    step = 2.0 ** ceil(log2(max(highest, 4) / 5))
    axis.set_major_locator(MultipleLocator(step))
    axis.set_major_formatter(FuncFormatter(lambda value, _: size_text(value)))


def svg(draw: Callable[["Figure"], Any], width: float, height: float) -> str:
    """What `draw` draws; inches."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # Only the widths of such letters are guessed.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure = Figure(figsize=(width, height), layout="constrained")
        draw(figure)
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None})
    return text.getvalue()[text.getvalue().index("<svg") :]
