"""The figures of a store as one HTML page that needs nothing else: pictures and tables."""

from keelog.pipeline.jobs.stats import pictures
from keelog.pipeline.jobs.stats.figures import Figures, Row
from keelog.pipeline.report.page import page, section, table
from keelog.pipeline.report.picture import COLOURS
from keelog.pipeline.report.text import percent_text, rate_text, time_text, topic_rows
from protocol.human_text import size_text


def render(figures: Figures, title: str) -> str:
    """The page. Pictures of what a store has nothing of are left out."""
    sections = _sections(figures) if figures.totals["messages"] else []
    return page(title, _span(figures.totals), _cards(figures.totals), sections)


def _sections(figures: Figures) -> list[str]:
    sections = [
        section(
            "Throughput",
            f"By store time (UTC), in windows of {figures.window.interval}.",
            pictures.throughput(figures) if figures.rates else "",
        ),
        section("Sizes", "Messages by size.", pictures.size_histogram(figures)),
        section("Largest topics", "", pictures.top_topics(figures)),
        section(
            "Skew",
            "Each dot is a queue. On the line it has as many messages as the topic's others.",
            pictures.skew(figures),
        ),
    ]
    if figures.tags:
        sections += [
            section(
                "Tags", "With their topics.", pictures.top_names(figures.tags, "tag", COLOURS[3])
            ),
            section("Tags over time", "", pictures.tags_over_time(figures)),
        ]
    if figures.keys:
        sections.append(
            section(
                "Keys", "With their topics.", pictures.top_names(figures.keys, "key", COLOURS[4])
            )
        )
    sections.append(section("Topics in figures", "", table(topic_rows(figures.topics))))
    return sections


def _cards(totals: Row) -> dict[str, str]:
    return {
        "messages": f"{totals['messages']:,}",
        "bytes": size_text(totals["bytes"]),
        "topics": str(totals["topics"]),
        "queues": str(totals["queues"]),
        "messages a second": rate_text(totals["per_second"]),
        "with a tag": percent_text(totals["tagged"], totals["messages"]),
        "with a key": percent_text(totals["keyed"], totals["messages"]),
    }


def _span(totals: Row) -> str:
    if totals["first"] is None:
        return "No message."
    return f"Messages stored from {time_text(totals['first'])} to {time_text(totals['last'])} UTC."
