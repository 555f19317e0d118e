"""Pulls that go on where one ended: what was read ahead changes no answer."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from node.reader import pull_desk
from node.reader.answers import Answer
from node.reader.pull_desk import Held, Pull, PullDesk, pull, pull_answer
from node.store.opening import RunningStore
from node.store.query.filters import parse_tags
from node.store.query.pull import PullRequest, TransferLimits
from protocol.errors import MqError
from protocol.ids import Queue
from protocol.names import COMMIT_LOG_DIR, offset_file_name
from tests.support.golden import facts, unpack
from tests.support.living_store import LivingStore

NAME = "small-clean"
QUEUE = Queue("audit_log", 0)
PLACES = [
    message["physicalOffset"]
    for message in facts(NAME).messages
    if Queue(message["topic"], message["queueId"]) == QUEUE and message["queued"]
]
HOT = TransferLimits(64, 1 << 20, 64, 1 << 20)


class Shop(NamedTuple):
    """A pull desk over a golden store, and what it delivered."""

    living: LivingStore
    desk: PullDesk
    answers: list[Answer]

    def pull(self, offset: int, count: int = 32, size: int = 1 << 20, **more: Any) -> Answer:
        """The desk's answer, the same as a look at the files alone gives."""
        request = PullRequest(count, size, **{"limits": HOT, "exact": True, **more})
        wanted = Pull(QUEUE, offset, request, 0)
        store = self.desk.store
        store.refresh()
        self.desk.pull(b"p", 1, wanted, 1.0)
        found = self.answers.pop()
        expected = pull_answer(pull(store, wanted))
        assert found.fields == expected.fields
        assert bytes(found.payload or b"") == bytes(expected.payload or b"")
        return found


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(NAME, tmp_path_factory.mktemp("ahead"))


@pytest.fixture
def shop(root: Path) -> Iterator[Shop]:
    answers: list[Answer] = []

    def deliver(_: Held, found: Answer | MqError, more: Mapping[str, Any]) -> bool:
        assert isinstance(found, Answer)
        assert not more
        answers.append(found)
        return True

    with LivingStore(root, facts(NAME)) as living:
        store = RunningStore(root, living.shards, living.settings)
        yield Shop(living, PullDesk(store, deliver, living.shards), answers)
        store.close()


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The offsets from which it is read ahead."""
    found: list[int] = []
    real = pull_desk._read_ahead

    def counted(store: Any, wanted: Pull) -> Any:
        found.append(wanted.offset)
        return real(store, wanted)

    monkeypatch.setattr(pull_desk, "_read_ahead", counted)
    return found


def walk(shop: Shop, count: int = 32, **more: Any) -> list[int]:
    """Pulls from the queue's begin to its end; the offsets where the pulls began."""
    offset, begins = 0, []
    while offset < len(PLACES):
        begins.append(offset)
        offset = shop.pull(offset, count, **more).fields["next_begin_offset"]
    return begins


def test_a_consumer_of_a_whole_queue_gets_each_answer_as_the_files_give_it(
    shop: Shop, reads: list[int]
) -> None:
    pulls = walk(shop)
    # The first pull reads by itself, the second what others take too, to the end of its file.
    assert reads[0] == pulls[1] == 32
    assert 1 <= len(reads) < len(pulls) / 2, reads


def test_bytes_bound_an_answer_as_much_as_messages(shop: Shop, reads: list[int]) -> None:
    begins = walk(shop, size=2_000)
    assert len(begins) > len(PLACES) // 32 + 1
    assert reads


def test_a_filter_reads_by_itself(shop: Shop, reads: list[int]) -> None:
    shop.pull(0)
    shop.pull(32, tags=parse_tags("no-such-tag"))
    assert reads == []


def test_cold_records_have_their_own_limits(shop: Shop) -> None:
    hot_bytes = facts(NAME).state["maxPhyOffset"] - PLACES[600]
    pulls = walk(shop, limits=TransferLimits(64, 1 << 20, 8, 1 << 20, memory_bytes=hot_bytes))
    assert pulls[1] == 8, "cold ones come by eight"
    assert pulls[-2] - pulls[-3] == 32, "hot ones do not"


def test_what_is_kept_is_bounded(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pull_desk, "AHEAD_KEPT_BYTES_MAX", 300_000)
    for first in range(8):
        shop.pull(first)
        shop.pull(first + 32)
    ahead = shop.desk._ahead
    kept = [one for one in ahead._kept.values() if one.payload]
    assert 1 <= len(kept) < 8
    assert ahead._bytes == sum(len(one.payload) for one in kept) <= 300_000
    monkeypatch.setattr(pull_desk, "AHEAD_PLACES_MAX", 3)
    for first in range(8):
        shop.pull(first)
    assert len(ahead._kept) <= 3


def test_damage_is_met_where_it_is(tmp_path: Path, reads: list[int]) -> None:
    root = unpack(NAME, tmp_path)
    place = PLACES[290]
    segment_bytes = facts(NAME).state["config"]["mappedFileSizeCommitLog"]
    path = root / COMMIT_LOG_DIR / offset_file_name(place - place % segment_bytes)
    with path.open("r+b") as file:
        file.seek(place % segment_bytes)
        file.write(b"\xff\xff\xff")
    found: list[Answer | MqError] = []
    with LivingStore(root, facts(NAME)) as living:
        store = RunningStore(root, living.shards, living.settings)

        def deliver(_: Held, one: Answer | MqError, __: Mapping[str, Any]) -> bool:
            found.append(one)
            return True

        desk = PullDesk(store, deliver, living.shards)
        offset = 0
        with pytest.raises(MqError, match="message 290 of queue 0"):
            while offset < len(PLACES):
                desk.pull(b"p", 1, Pull(QUEUE, offset, PullRequest(20, limits=HOT), 0), 1.0)
                last = found[-1]
                assert isinstance(last, Answer)
                offset = last.fields["next_begin_offset"]
        store.close()
    assert offset == 290
    assert reads


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.data())
def test_no_answer_differs_whatever_is_pulled_while_the_log_is_cut_and_grows(
    shop: Shop, data: st.DataObject
) -> None:
    whole = facts(NAME).state["maxPhyOffset"]
    following = 0
    for _ in range(data.draw(st.integers(4, 24))):
        step = data.draw(st.sampled_from("pppppppjgc"))
        if step == "g":
            shop.living.publish(whole)
        elif step == "c":
            cut = data.draw(st.integers(10, len(PLACES) - 1))
            shop.living.begin_epoch(PLACES[cut])
        else:
            if step == "j":
                following = data.draw(st.integers(0, len(PLACES) + 1))
            count = data.draw(st.sampled_from((1, 8, 32, 32, 32, 64, 300)))
            size = data.draw(st.sampled_from((300, 5_000, 1 << 20, 1 << 20)))
            following = shop.pull(following, count, size).fields["next_begin_offset"]
            assert not shop.answers
    shop.living.begin_epoch(whole)
