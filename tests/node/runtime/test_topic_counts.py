"""Counts by topic: a bounded number of names, over restarts, and no file believed that is none."""

from pathlib import Path

import pytest

from node.runtime import stats as module
from node.runtime.stats import OTHER_TOPICS, Count, TopicCounts, read_topics, stats_dir
from node.supervisor.monitoring.metrics import TopicFamilies

LONG = "é" * 127


def count(root: Path, *topics: str, index: int = 0) -> None:
    """One life of a reader: a message of 10 bytes of each."""
    counts = TopicCounts(root, "reader", index)
    for topic in topics:
        counts.add(topic, 1, 10)
        counts.publish()
    counts.close()


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "TOPICS_MAX", 2)


def test_topics_are_counted_over_restarts_and_slots(tmp_path: Path) -> None:
    count(tmp_path, "a", LONG, "a")
    count(tmp_path, "b", "a")
    count(tmp_path, LONG, index=1)
    assert read_topics(tmp_path, "reader") == {
        OTHER_TOPICS: Count(0, 0),
        "a": Count(3, 30),
        LONG: Count(2, 20),
        "b": Count(1, 10),
    }
    assert read_topics(tmp_path, "queue") == {}


@pytest.mark.usefixtures("few")
def test_topics_beyond_the_limit_or_too_long_share_a_count_and_one_of_that_name_too(
    tmp_path: Path,
) -> None:
    count(tmp_path, OTHER_TOPICS, LONG + "é", "a", "b", "c")
    count(tmp_path, "c", "b")
    assert read_topics(tmp_path, "reader") == {
        OTHER_TOPICS: Count(4, 40),
        "a": Count(1, 10),
        "b": Count(2, 20),
    }


@pytest.mark.usefixtures("few")
def test_a_scrape_has_no_more_topics_than_the_limit_whatever_the_slots_have(tmp_path: Path) -> None:
    metrics = TopicFamilies()
    for index in range(3):
        count(tmp_path, f"t{index}", f"u{index}", index=index)
        out = list(metrics.collect(tmp_path))[1]
        assert out.name == "rocketmq_messages_out"
        values = {sample.labels["topic"]: sample.value for sample in out.samples}
        assert values == {"t0": 1, "u0": 1, OTHER_TOPICS: 2 * index}


def test_a_file_with_other_bytes_is_replaced_and_never_believed(tmp_path: Path) -> None:
    count(tmp_path, "a")
    path = stats_dir(tmp_path) / "reader-0.topics"
    good = path.read_bytes()
    first = 16 + 8 + 34 * 8  # header, number of names, the entry of all others
    for at, bad in ((0, b"x"), (8, b"x"), (16, b"\xff" * 8), (first, b"\0"), (first + 1, b"\xff")):
        path.write_bytes(good[:at] + bad + good[at + len(bad) :])
        assert read_topics(tmp_path, "reader") == {}, at
        count(tmp_path, "b")
        assert read_topics(tmp_path, "reader")["b"] == Count(1, 10), at
    path.write_bytes(good[:-1])
    assert read_topics(tmp_path, "reader") == {}
