"""For which pulls the log is followed, or queue workers are woken, and for which not."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from node.reader.follower import IDLE_MS, TICK_MS, ReaderSite, StoreFollower
from node.runtime.state_page import NEVER, WorkerPage, run_dir
from tests.node.reader.test_service import Desk, Spot, hold, lag, spot
from tests.support.golden import GetStore, facts
from tests.support.living_store import LivingStore

NAME = "small-clean"


class Following:
    """A desk and its follower, whose turns a test makes."""

    def __init__(self, reader: Desk, page: WorkerPage) -> None:
        living = reader.living
        self.reader, self.page = reader, page
        site = ReaderSite(living.root, "reader-0", living.shards, living.settings)
        self.follower = StoreFollower(site, reader.service.desk, page)
        self.now = 1_000.0

    def turn(self, later_s: float = 0.0) -> int:
        """One turn, if it is due; then how long the reader may sleep, in ms."""
        self.now += later_s
        if self.follower.is_anything_due(self.now):
            self.follower.begin_turn(self.now, is_rung=False)
            self.follower.end_turn(self.now)
            self.follower.beat(self.now, 0)
        assert self.follower.ask_for_ring()
        return self.follower.sleep_ms(self.now, has_unsent=False)

    def grow(self, end: int) -> None:
        """The log grows, and the queue workers say so."""
        self.reader.living.publish(end)
        for number, worker in enumerate(self.reader.living.workers, 1):
            worker.publish(growths=worker.growths + number)


@pytest.fixture
def following(
    golden_copy: GetStore, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[Following, Spot]]:
    root = golden_copy(NAME)
    living, where = LivingStore(root, facts(NAME)), spot(NAME)
    living.begin_epoch(where.before)
    monkeypatch.chdir(run_dir(Path(root)))
    with closing(Desk(living)) as reader, WorkerPage.create(root, "reader-0") as page:
        reader.now = 1_000.0
        made = Following(reader, page)
        made.turn()
        yield made, where
        made.follower._wakeup.close()
        made.follower._workers.close()


def test_a_patient_pull_is_answered_within_its_patience_and_the_log_is_not_followed(
    following: tuple[Following, Spot],
) -> None:
    one, where = following
    hold(one.reader, where, wait_ms=20_000, patience_ms=50)
    desk = one.reader.service.desk
    assert (desk.tail.follows, one.page.wake_at, one.page.listens) == (False, NEVER, 0)
    assert one.turn() == 50
    one.grow(where.after)
    assert one.turn(0.05) == IDLE_MS, "nothing is held any more"
    assert [reply.header["status"] for reply in one.reader.sent] == ["FOUND"]


def test_patient_pulls_are_looked_at_no_more_often_than_they_ask(
    following: tuple[Following, Spot],
) -> None:
    one, where = following
    hold(one.reader, where, wait_ms=20_000, patience_ms=100)
    one.grow(where.before)
    one.turn(0.2)
    one.grow(where.after)
    one.turn(0.03)
    assert one.reader.sent == [], "it was looked at 30 ms ago"
    assert one.turn(0.08) == IDLE_MS
    assert len(one.reader.sent) == 1


def test_what_comes_between_refresh_and_look_is_found_at_the_next_look(
    following: tuple[Following, Spot],
) -> None:
    one, where = following
    hold(one.reader, where, wait_ms=20_000, patience_ms=50)
    one.grow(where.before)
    one.now += 0.2
    one.follower.begin_turn(one.now, is_rung=False)
    one.grow(where.after)
    one.follower.end_turn(one.now)
    one.turn(0.06)
    assert [reply.header["status"] for reply in one.reader.sent] == ["FOUND"]


def test_beside_a_pull_without_patience_a_patient_one_is_answered_at_once(
    following: tuple[Following, Spot],
) -> None:
    one, where = following
    hold(one.reader, where, b"a", wait_ms=20_000, patience_ms=1_000)
    hold(one.reader, where, b"b", wait_ms=20_000)
    assert one.turn() <= TICK_MS
    assert one.page.wake_at != NEVER
    one.grow(where.after)
    one.turn(0.002)
    assert sorted(reply.peer for reply in one.reader.sent) == [b"a", b"b"]


def test_a_patience_of_more_than_a_second_is_refused(following: tuple[Following, Spot]) -> None:
    one, where = following
    topic, queue = where.queue
    reply = one.reader.get(
        "pull", topic=topic, queue=queue, offset=where.offset, wait_ms=5, patience_ms=1_001
    )
    assert reply.error == "BadRequest"
    assert "patience_ms" in reply.header["error"]["reason"]


def test_workers_do_not_rest_while_a_pull_waits_for_what_they_do(
    following: tuple[Following, Spot],
) -> None:
    one, where = following
    lag(one.reader, where.before // 2)
    hold(one.reader, where, wait_ms=0, patience_ms=50)
    one.turn(0.2)
    assert one.page.listens == 1
    one.grow(where.before)
    for _ in range(3):
        one.turn(0.2)
    assert [reply.header["status"] for reply in one.reader.sent] == ["OFFSET_OVERFLOW_ONE"]
    assert one.page.listens == 0


def test_nobody_rings_for_a_record_whose_news_come_in_another_way(
    following: tuple[Following, Spot],
) -> None:
    one, where = following
    hold(one.reader, where, wait_ms=20_000)
    one.turn()
    asked_for = one.page.wake_at
    assert asked_for != NEVER
    assert one.follower.asks_for_ring
    one.follower.spare_ring()
    assert not one.follower.asks_for_ring
    assert one.page.wake_at == NEVER
    assert one.follower.ask_for_ring(is_woken=True)
    assert one.page.wake_at == NEVER
    one.grow(where.after)
    assert not one.follower.ask_for_ring(is_woken=True), "the record is there: do not sleep"
    one.turn(0.002)
    assert len(one.reader.sent) == 1
    hold(one.reader, where, offset=where.offset + 1, wait_ms=20_000)
    one.turn()
    assert one.page.wake_at > asked_for, "the next one may come from anybody"
