"""What a queue worker tells of topics: how many messages came, from the ends of its queues."""

import time
from pathlib import Path

from node.runtime.stats import Count, TopicCounts, read_topics
from workers.dispatch import TOPICS_EVERY_S, TopicGrowth


class Handler:
    def __init__(self, **sums: int) -> None:
        self.sums = sums

    def messages_by_topic(self) -> dict[str, int]:
        return dict(self.sums)


def grow(root: Path, handler: Handler) -> TopicGrowth:
    return TopicGrowth(handler.messages_by_topic, TopicCounts(root, "queue", 0))


def counted(root: Path) -> dict[str, Count]:
    return {topic: one for topic, one in read_topics(root, "queue").items() if one.messages}


def test_what_comes_is_counted_and_what_was_there_is_not_nor_what_a_cut_took(
    tmp_path: Path,
) -> None:
    handler = Handler(old=100)
    growth = grow(tmp_path, handler)
    for records, sums in enumerate(({"old": 103}, {"old": 101, "new": 4}, {"old": 102}), 1):
        handler.sums = sums
        growth.look_now(records)
    assert counted(tmp_path) == {"old": Count(4, 0), "new": Count(4, 0)}
    growth.close()
    again = grow(tmp_path, Handler(old=102, new=4))
    again.look_now(1)
    assert counted(tmp_path)["old"] == Count(4, 0)


def test_queues_are_looked_at_now_and_then_and_only_when_something_came(tmp_path: Path) -> None:
    handler = Handler(a=0)
    growth = grow(tmp_path, handler)
    handler.sums = {"a": 1}
    growth.look(100.0, 1)
    handler.sums = {"a": 2}
    growth.look(100.0 + TOPICS_EVERY_S / 2, 2)
    assert counted(tmp_path) == {"a": Count(1, 0)}
    due = 100.0 + TOPICS_EVERY_S
    growth.look(due, 1)
    assert counted(tmp_path) == {"a": Count(1, 0)}
    growth.look(due, 2)
    assert counted(tmp_path) == {"a": Count(2, 0)}


def test_a_busy_machine_does_not_delay_the_counts(tmp_path: Path) -> None:
    class HeldUp(Handler):
        def messages_by_topic(self) -> dict[str, int]:
            time.sleep(0.05)
            return super().messages_by_topic()

    handler = HeldUp(a=0)
    growth = grow(tmp_path, handler)
    for second in range(3):
        handler.sums = {"a": second + 1}
        growth.look(100.0 + second * 1.5 * TOPICS_EVERY_S, second + 1)
    assert counted(tmp_path) == {"a": Count(3, 0)}
