"""The report is one page that needs nothing else, whatever a store holds. Without Spark."""

import re
from html.parser import HTMLParser
from typing import Any

import pytest

from keelog.pipeline.jobs.stats import OTHER, WINDOWS, WINDOWS_MAX, Figures, Window, window_for
from keelog.pipeline.jobs.stats_report import render
from protocol.human_text import count_text, size_text

NOON = 1_700_000_000_000
NASTY = "<script>alert(1)</script> $x$ 日本\x07"
Row = dict[str, Any]


def topic(name: str, messages: int, first: int | None = NOON) -> Row:
    return {
        "topic": name, "queues": 2, "messages": messages, "bytes": messages * 200,
        "per_second": None, "size_min": 100, "size_median": 200, "size_p90": 300,
        "size_p99": 300, "size_max": 300, "tagged": 1, "keyed": 0, "skew": 1.5,
        "first": first, "last": first,
    }  # fmt: skip


def figures(topics: list[Row], rates: list[Row], window: Window = WINDOWS[2]) -> Figures:
    queues = [
        {"topic": row["topic"], "queue_id": number, "messages": 1, "bytes": 1, "evenness": share}
        for row in topics
        for number, share in enumerate((0.5, 1.5))
    ]
    tags = [{"topic": row["topic"], "tag": NASTY, "messages": 3, "bytes": 1} for row in topics]
    count = sum(row["messages"] for row in topics)
    totals = {
        "topics": len(topics), "queues": len(queues), "messages": count, "bytes": count * 200,
        "tagged": 1, "keyed": 0, "per_second": None,
        "first": topics[0]["first"] if topics else None,
        "last": topics[0]["first"] if topics else None,
    }  # fmt: skip
    sizes = [{"size_from": 91, "messages": count, "bytes": 1}] if topics else []
    tag_rates = [{**row, "tag": None} for row in rates]
    return Figures(totals, window, topics, queues, sizes, tags, [], rates, tag_rates)


def rate(name: str, start: int | None) -> Row:
    return {"topic": name, "start": start, "messages": 5, "bytes": 1000}


class Tags(HTMLParser):
    """Counts opened tags; those of SVG and HTML must be closed in order."""

    def __init__(self) -> None:
        super().__init__()
        self.count: dict[str, int] = {}
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def parsed(page: str) -> Tags:
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    return tags


def test_the_page_has_a_picture_for_all_that_there_is_and_loads_nothing() -> None:
    rows = [rate("a", NOON), rate("b", NOON + 5_000), rate(OTHER, NOON)]
    page = render(figures([topic("a", 10), topic("b", 4)], rows), "store")
    tags = parsed(page)
    assert tags.count["svg"] == 6
    assert "link" not in tags.count and "script" not in tags.count and "img" not in tags.count
    assert not re.search(r"(src|@import|url\()\s*=?\s*[\"']?https?:", page)
    assert "KiB" in page


def test_names_from_a_store_are_text_and_nothing_else() -> None:
    page = render(figures([topic(NASTY, 3)], [rate(NASTY, NOON)]), NASTY)
    assert "script" not in parsed(page).count
    assert "&lt;script&gt;alert(1)&lt;/script&gt; $x$ 日本" in page


def test_an_empty_store_has_a_page_too() -> None:
    page = render(figures([], []), "store")
    assert "No message." in page
    assert "svg" not in parsed(page).count


@pytest.mark.parametrize("start", [None, -5, 2**62])
def test_times_that_nobody_can_draw_do_no_harm(start: int | None) -> None:
    rows = [rate("a", NOON), rate("a", start)]
    assert parsed(render(figures([topic("a", 10, start)], rows), "store")).count["svg"] == 6


def test_a_message_far_from_all_others_does_not_stretch_the_picture() -> None:
    rows = [rate("a", 0), rate("a", NOON)]
    page = render(figures([topic("a", 10)], rows, WINDOWS[0]), "store")
    assert len(page) < 1_000_000


def test_windows_are_the_shortest_that_are_not_too_many() -> None:
    assert window_for(0) == WINDOWS[0]
    assert window_for(WINDOWS_MAX * 1000).interval == "1 second"
    assert window_for(WINDOWS_MAX * 1000 + 1).interval == "5 seconds"
    assert window_for(2**62) == WINDOWS[-1]


def test_figures_are_written_as_people_read_them() -> None:
    texts = [size_text(value) for value in (0, 512, 1000, 1023, 1024, 1536, 5 * 2**30)]
    assert texts == ["0 B", "512 B", "1,000 B", "1,023 B", "1 KiB", "1.5 KiB", "5 GiB"]
    assert [count_text(value) for value in (0, 7, 1500, 2_000_000)] == ["0", "7", "1.5k", "2M"]
