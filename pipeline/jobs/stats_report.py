"""The figures of a store as one HTML page that needs nothing else: pictures and tables."""

from collections.abc import Sequence
from html import escape

from pipeline.jobs import stats_pictures as pictures
from pipeline.jobs.stats_figures import Figures, Row
from pipeline.jobs.stats_pictures import COLOURS
from pipeline.jobs.stats_text import percent_text, rate_text, size_text, time_text, topic_rows

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


def render(figures: Figures, title: str) -> str:
    """The page. Pictures of what a store has nothing of are left out."""
    return _PAGE.format(
        title=escape(title),
        span=escape(_span(figures.totals)),
        cards=_cards(figures.totals),
        sections="\n".join(_sections(figures) if figures.totals["messages"] else []),
    )


def _sections(figures: Figures) -> list[str]:
    sections = [
        _section(
            "Throughput",
            f"By store time (UTC), in windows of {figures.window.interval}.",
            pictures.throughput(figures) if figures.rates else "",
        ),
        _section("Sizes", "Messages by size.", pictures.size_histogram(figures)),
        _section("Largest topics", "", pictures.top_topics(figures)),
        _section(
            "Skew",
            "Each dot is a queue. On the line it has as many messages as the topic's others.",
            pictures.skew(figures),
        ),
    ]
    if figures.tags:
        sections += [
            _section(
                "Tags", "With their topics.", pictures.top_names(figures.tags, "tag", COLOURS[3])
            ),
            _section("Tags over time", "", pictures.tags_over_time(figures)),
        ]
    if figures.keys:
        sections.append(
            _section(
                "Keys", "With their topics.", pictures.top_names(figures.keys, "key", COLOURS[4])
            )
        )
    sections.append(_section("Topics in figures", "", _table(topic_rows(figures.topics))))
    return sections


def _section(title: str, line: str, content: str) -> str:
    told = f"<p>{escape(line)}</p>" if line else ""
    return f"<section><h2>{escape(title)}</h2>{told}<div class='wide'>{content}</div></section>"


def _cards(totals: Row) -> str:
    shown = {
        "messages": f"{totals['messages']:,}",
        "bytes": size_text(totals["bytes"]),
        "topics": str(totals["topics"]),
        "queues": str(totals["queues"]),
        "messages a second": rate_text(totals["per_second"]),
        "with a tag": percent_text(totals["tagged"], totals["messages"]),
        "with a key": percent_text(totals["keyed"], totals["messages"]),
    }
    return "".join(
        f"<div><b>{escape(text)}</b><span>{name}</span></div>" for name, text in shown.items()
    )


def _table(rows: Sequence[dict[str, str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in (rows[0] if rows else ()))
    body = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row.values()) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _span(totals: Row) -> str:
    if totals["first"] is None:
        return "No message."
    return f"Messages stored from {time_text(totals['first'])} to {time_text(totals['last'])} UTC."
