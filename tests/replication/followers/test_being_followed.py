"""A node that is followed: what a follower gets, and what happens to those that cannot follow."""

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.runtime.run_files import FollowersState, read_followers
from protocol.ha import FRAME_BODY_BYTES, encode_report
from protocol.status import as_json
from tests.support.follower import HA, LogFollower, followers_place, log_bytes, raw_frames
from tests.support.node import RunningNode, wait_until

pytestmark = [pytest.mark.nodes, pytest.mark.xdist_group("followers")]
SEGMENT = 256 * 1024
HASTY = (
    f"mapped_file_size_commit_log={SEGMENT}",
    "ha_send_heartbeat_interval=200",
    "ha_housekeeping_interval=3000",
    "flush_interval_commit_log=20",
    "flush_commit_log_least_pages=0",
)


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    root = tmp_path_factory.mktemp("followed") / "store"
    with RunningNode(root, (HA, *HASTY), queue_workers=1, readers=1) as running:
        fill(running, 40)
        yield running


@pytest.fixture
def place(node: RunningNode) -> tuple[str, int]:
    return followers_place(node)


def fill(node: RunningNode, count: int, size: int = 5_000) -> int:
    """Sends messages; answers the end of the log once all of it is flushed."""
    with node.client.producer() as producer:
        producer.send_many("t", [b"x" * size] * count)
    end = node.log_state().appended
    wait_until(lambda: node.log_state().flushed >= end, "no flush")
    return end


def state_when(node: RunningNode, words: str) -> FollowersState:
    """What is shown of the followers, once an end with these words is."""
    wait_until(
        lambda: any(words in end.reason for end in read_followers(node.root).ended),
        f"no end with {words!r}: {read_followers(node.root)}\n{node.stderr}",
    )
    return read_followers(node.root)


def test_an_empty_follower_gets_the_whole_log_byte_for_byte_while_it_grows(
    node: RunningNode, place: tuple[str, int]
) -> None:
    with LogFollower(place) as follower:
        for _ in range(5):
            fill(node, 30)
        end = fill(node, 1)
        follower.wait_for(end)
        assert follower.begin == 0
        assert bytes(follower.log) == log_bytes(node.root, 0, end)
    assert max(size for _, size in follower.frames) <= FRAME_BODY_BYTES
    for offset, size in follower.frames:
        assert offset // SEGMENT == (offset + size - 1) // SEGMENT, "a frame crosses a segment"
    assert end > 3 * SEGMENT


def test_a_follower_goes_on_exactly_where_it_is(node: RunningNode, place: tuple[str, int]) -> None:
    end = fill(node, 10)
    for at in (1, 12_345, SEGMENT - 1, SEGMENT, end - 3, end):
        with LogFollower(place, log_bytes(node.root, 0, at)) as follower:
            follower.wait_for(end)
            assert bytes(follower.log) == log_bytes(node.root, 0, end), at
            assert not follower.frames or follower.frames[0][0] == at


def test_many_followers_get_the_same(node: RunningNode, place: tuple[str, int]) -> None:
    followers = [LogFollower(place) for _ in range(12)]
    for one in followers:
        one.connect()
    end = fill(node, 60)
    try:
        for one in followers:
            one.wait_for(end)
            assert bytes(one.log) == log_bytes(node.root, 0, end)
        wait_until(lambda: len(read_followers(node.root).followers) == 12, "not all are shown")
    finally:
        for one in followers:
            one.close()


def test_only_flushed_bytes_are_sent(tmp_path: Path) -> None:
    never = ("flush_interval_commit_log=100000", f"mapped_file_size_commit_log={SEGMENT}")
    with RunningNode(tmp_path / "s", (HA, *never), queue_workers=1, readers=1) as node:
        node.client.send("t", b"in memory alone")
        with LogFollower(followers_place(node)) as follower:
            time.sleep(0.5)
            state = node.log_state()
            assert state.appended > state.flushed == follower.end == 0
            node.client.send("t", b"on disk", acks="flushed")
            follower.wait_for(node.log_state().flushed)
            assert follower.end > state.appended


def test_a_follower_of_a_quiet_node_gets_each_message_within_the_flush_interval(
    tmp_path: Path,
) -> None:
    quiet = ("flush_interval_commit_log=50", "flush_commit_log_thorough_interval=1000000")
    with (
        RunningNode(tmp_path / "s", (HA, *quiet), queue_workers=1, readers=1) as node,
        LogFollower(followers_place(node)) as follower,
    ):
        wait_until(lambda: read_followers(node.root).followers != (), "nobody follows")
        for number in range(1, 4):
            node.client.send("t", b"far less than a page")
            end = node.log_state().appended
            follower.wait_for(end)
            assert follower.end == end, number
            assert bytes(follower.log) == log_bytes(node.root, 0, end)


def test_an_empty_follower_of_an_empty_node_waits_and_gets_the_log(tmp_path: Path) -> None:
    with (
        RunningNode(tmp_path / "s", (HA, *HASTY), queue_workers=1, readers=1) as node,
        LogFollower(followers_place(node), b"\0") as follower,
    ):
        # A report of 1, with which an empty replica asks for the log from its begin.
        wait_until(lambda: follower.heartbeats[-2:] == [1, 1], "no heart-beats")
        end = fill(node, 3)
        follower.wait_for(end)
        assert bytes(follower.log) == log_bytes(node.root, 0, end)
        assert read_followers(node.root).ended == ()


def test_heart_beats_name_the_next_byte_and_silence_ends_a_connection(
    node: RunningNode, place: tuple[str, int]
) -> None:
    end = fill(node, 1)
    have = log_bytes(node.root, 0, end)
    with LogFollower(place, have, reports=False) as silent:
        began = time.monotonic()
        wait_until(lambda: len(silent.heartbeats) >= 3, "no heart-beats")
        assert set(silent.heartbeats) == {end}
        assert silent.is_over.wait(20)
        assert 2.5 < time.monotonic() - began < 15
    state_when(node, "it gave no report for 3 s")


@pytest.mark.parametrize(
    ("first", "words"),
    [
        (10**12, "beyond the end"),
        (-1, "no log offset"),
        (-(2**63), "no log offset"),
        (int.from_bytes(b"GET / HT", "big"), "beyond the end"),
    ],
)
def test_a_follower_that_cannot_follow_is_closed_with_the_reason(
    node: RunningNode, place: tuple[str, int], first: int, words: str
) -> None:
    assert raw_frames(place, encode_report(first), 20) == b""
    state_when(node, words)


def test_a_follower_that_was_ahead_stays_refused_when_the_log_has_grown_past_it(
    node: RunningNode, place: tuple[str, int]
) -> None:
    shorter = fill(node, 1)
    ahead = shorter + 3_000
    assert raw_frames(place, encode_report(ahead), 20) == b""
    end = fill(node, 2)
    assert end > ahead
    torn = ahead - 100
    for again in (ahead, ahead, torn):
        assert raw_frames(place, encode_report(again), 20) == b"", again
    found = state_when(node, f"its log ends at {torn}; a log of its host ended at {ahead}")
    assert [one.reason for one in found.ended[:3] if "they are not the same log" in one.reason]
    # Rewound, it is taken again, and so is who comes back with what it got since.
    have = log_bytes(node.root, 0, shorter)
    with LogFollower(place, have) as follower:
        follower.wait_for(end)
        assert bytes(follower.log) == log_bytes(node.root, 0, end)
    with LogFollower(place, log_bytes(node.root, 0, ahead - 100)) as follower:
        follower.wait_for(end)


def test_an_acknowledgement_of_what_was_never_sent_ends_the_connection(
    node: RunningNode, place: tuple[str, int]
) -> None:
    end = fill(node, 1)
    with LogFollower(place, log_bytes(node.root, 0, end), reports=False) as liar:
        wait_until(lambda: liar.heartbeats == [end], "the first report was not believed")
        liar.report(end + 1)
        assert liar.is_over.wait(20)
    state_when(node, f"it acknowledges {end + 1}, and {end} is what it was sent")


def test_bad_bytes_cost_their_connection_alone(node: RunningNode, place: tuple[str, int]) -> None:
    with LogFollower(place) as good:
        for garbage in (b"\xff" * 4096, b"\x7f" * 64, b"x" * 9):
            raw_frames(place, garbage, 20)
        half = threading.Thread(target=raw_frames, args=(place, b"abc", 20))
        half.start()
        good.wait_for(fill(node, 20))
        half.join()  # closed for its silence
        assert not good.is_over.is_set()
    assert len(node.pids()["followers"]) == 1


def test_a_follower_below_the_begin_of_the_log_is_closed(tmp_path: Path) -> None:
    settings = (
        HA, *HASTY, "retention_bytes=600000", "clean_resource_interval=50",
        "delete_commit_log_files_interval=1", "file_forced_reserved_minutes=0",
        "file_forced_warning_seconds=0",
    )  # fmt: skip
    with RunningNode(tmp_path / "s", settings, queue_workers=1, readers=1) as node:
        place = followers_place(node)
        for _ in range(40):
            fill(node, 20)
            if node.log_state().min_offset:
                break
            time.sleep(0.2)
        begin = node.log_state().min_offset
        assert begin > 0, "retention has deleted nothing"
        assert raw_frames(place, encode_report(1), 20) == b""
        state_when(node, "below the begin")
        with LogFollower(place) as empty:
            empty.wait_for(fill(node, 1))
            assert empty.begin % SEGMENT == 0
            assert empty.begin >= begin


def test_status_and_health_show_who_follows(node: RunningNode, place: tuple[str, int]) -> None:
    end = fill(node, 1)
    with LogFollower(place) as follower:
        follower.wait_for(end)
        wait_until(lambda: read_followers(node.root).acknowledged == end, "no acknowledgement")
        shown = dict(node.client.status().raw)["followers"]
        (row,) = shown["followers"]
        assert (row["acknowledged"], row["lag_bytes"], row["in_sync"]) == (end, 0, True)
        checks = {one.name: one for one in node.client.health().checks}
        assert checks["followers"].ok
        assert "1 connected, 1 in sync" in checks["followers"].detail
    shown = as_json(state_when(node, "it closed the connection"))
    assert json.loads(json.dumps(shown)) == shown


def test_the_process_may_be_killed_and_followers_go_on(
    node: RunningNode, place: tuple[str, int]
) -> None:
    with LogFollower(place) as follower:
        follower.wait_for(fill(node, 5))
        killed = node.kill("followers")
        assert follower.is_over.wait(20)
        wait_until(
            lambda: node.pids().get("followers", [killed]) != [killed], "it was not started again"
        )
        node.wait_all_run()
        follower.connect()
        end = fill(node, 5)
        follower.wait_for(end)
        assert bytes(follower.log) == log_bytes(node.root, 0, end)


@pytest.mark.attack(64)
def test_who_is_not_named_gets_nothing_and_is_told_of(tmp_path: Path) -> None:
    settings = (HA, *HASTY, "ha_allowed_peers=192.0.2.0/24,::1")
    with RunningNode(tmp_path / "s", settings, queue_workers=1, readers=1) as node:
        fill(node, 1)
        with LogFollower(followers_place(node)) as stranger:
            found = state_when(node, "ha_allowed_peers does not name 127.0.0.1")
            assert (found.followers, stranger.end) == ((), 0)


def test_who_is_in_a_network_that_is_named_gets_the_log(tmp_path: Path) -> None:
    settings = (HA, *HASTY, "ha_allowed_peers=192.0.2.7, 127.0.0.0/8")
    with RunningNode(tmp_path / "s", settings, queue_workers=1, readers=1) as node:
        end = fill(node, 1)
        with LogFollower(followers_place(node)) as follower:
            follower.wait_for(end)
        assert bytes(follower.log) == log_bytes(node.root, 0, end)
