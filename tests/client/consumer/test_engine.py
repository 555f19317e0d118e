"""A member of a group without sockets: what it asks, and what it makes of the answers."""

from collections.abc import Mapping
from typing import Any

import pytest

from keelog.client.consumer.engine import BEAT_EVERY_S, REBALANCE_EVERY_S, ConsumerEngine
from keelog.client.consumer.options import ConsumerOptions, consumer_settings
from keelog.client.consumer.queues import (
    AGAIN_S,
    COMMIT_EVERY_S,
    DEAD_LETTER,
    HANDED_BACK_S,
    HELD_S,
    LOCK_EVERY_S,
    LOCK_TRUST_S,
    PULL_MESSAGES_AT_ONCE,
    REQUEST_S,
    SPAN_MAX,
    GroupMessage,
)
from protocol.access.credentials import Credentials
from protocol.errors import NotAllowed
from protocol.ids import Host
from protocol.record.encode import NewMessage, encode_message
from protocol.record.patch import AppendRules, StoreStamp, check_plain, patch_plain
from protocol.remoting.bodies import (
    ConsumerIdList,
    HeartbeatData,
    LockBatchBody,
    LockedQueues,
    QueueData,
    TopicRouteData,
)
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.frame_reader import FrameReader, frame_head
from protocol.remoting.headers import ONE_WAY, RemotingHeader
from protocol.remoting.java_json import read_body, write_body

OK = ResponseCode.SUCCESS
NO_EXT: Mapping[str, str] = {}


class Wire:
    """The other end of the engine's connection: it answers as a gateway does, unless told."""

    def __init__(self, **options: Any) -> None:
        given: ConsumerOptions = options  # type: ignore[assignment]
        self.now = 100.0
        settings = consumer_settings("g", "t", given, 1)
        self.engine = ConsumerEngine(settings, "c1", self.settle)
        self.members: tuple[str, ...] = ("c1",)
        self.queues = 2
        self.places: dict[int, int] = {}
        self.asked: list[tuple[RemotingHeader, bytes]] = []
        self.codes: dict[int, int] = {}
        self.locked = True
        self.connect()

    def settle(self, message: GroupMessage, delay_level: int | None) -> None:
        self.engine.queues.settle(message, delay_level, self.now)

    def connect(self) -> None:
        self.exchange = self.engine.connected(self.now)
        self._reader = FrameReader()

    def turns(self, seconds: float = 0.0) -> float:
        """Lets time pass, and then turn follow turn until nothing more is asked."""
        self.now += seconds
        for _ in range(50):
            due = self.engine.turn(self.now)
            if not self.exchange.unsent:
                return due
            self._answer_all()
        raise AssertionError("it asks without an end")

    def _answer_all(self) -> None:
        data = bytes(self.exchange.unsent)
        del self.exchange.unsent[:]
        while data:
            room = self._reader.room()
            size = min(len(room), len(data))
            room[:size] = data[:size]
            data = data[size:]
            frames = [(one, bytes(body)) for one, body in self._reader.received(size)]
            for header, body in frames:
                self.asked.append((header, body))
                if header.code == RequestCode.UPDATE_CONSUMER_OFFSET:
                    self._note_place(header)
                if not header.is_one_way:
                    self._answer(header, body)

    def _note_place(self, header: RemotingHeader) -> None:
        if header.code not in self.codes:
            self.places[int(header.ext["queueId"])] = int(header.ext["commitOffset"])

    def _answer(self, header: RemotingHeader, body: bytes) -> None:
        if header.code in self.codes:
            self.answer(header, self.codes[header.code])
            return
        ext = header.ext
        match header.code:
            case RequestCode.PULL_MESSAGE:
                pass  # it is held
            case RequestCode.GET_ROUTEINFO_BY_TOPIC:
                if ext["topic"].startswith("%RETRY%"):
                    self.answer(header, ResponseCode.TOPIC_NOT_EXIST)
                else:
                    route = TopicRouteData((), (QueueData("b", self.queues, self.queues, 6),))
                    self.answer(header, OK, body=write_body(route, standard=True))
            case RequestCode.GET_CONSUMER_LIST_BY_GROUP:
                ids = ConsumerIdList(self.members)
                self.answer(header, OK, body=write_body(ids, standard=True))
            case RequestCode.QUERY_CONSUMER_OFFSET:
                place = self.places.get(int(ext["queueId"]))
                if place is None:
                    self.answer(header, ResponseCode.QUERY_NOT_FOUND)
                else:
                    self.answer(header, OK, {"offset": str(place)})
            case RequestCode.GET_MAX_OFFSET:
                self.answer(header, OK, {"offset": "50"})
            case RequestCode.LOCK_BATCH_MQ:
                wanted = read_body(LockBatchBody, body).mq_set if self.locked else ()
                self.answer(header, OK, body=write_body(LockedQueues(wanted), standard=True))
            case _:
                self.answer(header, OK)

    def answer(
        self, header: RemotingHeader, code: int, ext: Mapping[str, str] = NO_EXT, body: bytes = b""
    ) -> None:
        self.receive(header.answer(code, ext), body)

    def receive(self, header: RemotingHeader, body: bytes = b"") -> None:
        data = frame_head(header, len(body)) + body
        while data:
            room = self.exchange.room()
            size = min(len(room), len(data))
            room[:size] = data[:size]
            data = data[size:]
            self.engine.received(size, self.now)

    def all_of(self, code: int) -> list[RemotingHeader]:
        """The requests of a code since the last look."""
        found = [header for header, _ in self.asked if header.code == code]
        self.asked = [one for one in self.asked if one[0].code != code]
        return found

    def pulls(self) -> dict[int, RemotingHeader]:
        return {int(one.ext["queueId"]): one for one in self.all_of(RequestCode.PULL_MESSAGE)}

    def found(self, pull: RemotingHeader, *offsets: int, following: int | None = None) -> None:
        """Answers a pull with messages at these offsets."""
        queue_id = int(pull.ext["queueId"])
        after = offsets[-1] + 1 if offsets and following is None else following
        body = b"".join(stored(offset, queue_id) for offset in offsets)
        code = OK if offsets else ResponseCode.PULL_NOT_FOUND
        self.answer(pull, code, {"nextBeginOffset": str(after)}, body)

    def take(self) -> list[tuple[int, int, GroupMessage]]:
        got = []
        while (message := self.engine.queues.take(self.now)) is not None:
            got.append((message.queue_id, message.queue_offset, message))
        return got

    def offsets(self) -> list[tuple[int, int]]:
        return [one[:2] for one in self.take()]


def stored(offset: int, queue_id: int) -> bytes:
    """A record as a node stores it."""
    raw = encode_message(NewMessage("t", b"%d" % offset, queue_id), crc=True)
    rules = AppendRules(4 * 1024 * 1024, crc=True)
    (row,) = check_plain(raw, rules)
    data, stamp = bytearray(raw), StoreStamp(1, Host(bytes(4), 0).to_bytes())
    patch_plain(data, row, offset, 1000 * offset, stamp, crc=True)
    return bytes(data)


def test_a_new_member_beats_divides_the_queues_and_pulls_them() -> None:
    wire = Wire()
    wire.places = {0: 7}
    wire.turns()
    (beat,) = [body for header, body in wire.asked if header.code == RequestCode.HEART_BEAT]
    data = read_body(HeartbeatData, beat)
    assert data.client_id == "c1"
    (group,) = data.consumer_data_set
    assert (group.group_name, group.consume_type) == ("g", "CONSUME_PASSIVELY")
    assert {one.topic for one in group.subscription_data_set} == {"t", "%RETRY%g"}
    pulls = wire.pulls()
    assert {queue: one.ext["queueOffset"] for queue, one in pulls.items()} == {0: "7", 1: "50"}
    assert pulls[0].ext["sysFlag"] == "6"
    assert wire.places == {0: 7, 1: 50}, "a new group keeps where it began"


def test_another_member_takes_its_share_and_gives_it_back() -> None:
    wire = Wire(start="earliest")
    wire.turns()
    wire.found(wire.pulls()[1], 0, 1)
    messages = wire.take()
    messages[0][2].ack()
    wire.members = ("c0", "c1")  # c0 comes first: it takes queue 0
    wire.receive(RemotingHeader(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, 1, ONE_WAY))
    wire.turns()
    assert {queue.queue_id for queue in wire.engine.queues.owned} == {1}
    wire.members = ("c1", "c2")
    wire.turns(REBALANCE_EVERY_S)
    assert {queue.queue_id for queue in wire.engine.queues.owned} == {0}
    assert wire.places[1] == 1, "its place went to the node before its next owner asks"
    messages[1][2].ack()
    wire.turns(COMMIT_EVERY_S)
    assert wire.places[1] == 1, "what ends later is the next owner's"


def test_a_list_of_members_that_cannot_be_had_changes_nothing() -> None:
    wire = Wire()
    wire.turns()
    wire.codes[RequestCode.GET_CONSUMER_LIST_BY_GROUP] = ResponseCode.SYSTEM_ERROR
    wire.turns(REBALANCE_EVERY_S)
    assert len(wire.engine.queues.owned) == 2


def test_a_member_that_is_not_in_the_list_beats_at_once() -> None:
    wire = Wire()
    wire.turns()
    wire.all_of(RequestCode.HEART_BEAT)
    wire.members = ("c2",)
    wire.turns(REBALANCE_EVERY_S)
    assert wire.engine.queues.owned == {}
    assert wire.all_of(RequestCode.HEART_BEAT)


def test_heart_beats_go_on() -> None:
    wire = Wire()
    wire.turns()
    wire.all_of(RequestCode.HEART_BEAT)
    wire.turns(BEAT_EVERY_S / 2)
    assert not wire.all_of(RequestCode.HEART_BEAT)
    wire.turns(BEAT_EVERY_S / 2)
    assert wire.all_of(RequestCode.HEART_BEAT)


def test_a_group_that_the_node_refuses_is_an_error() -> None:
    wire = Wire()
    wire.codes[RequestCode.HEART_BEAT] = ResponseCode.NO_PERMISSION
    wire.turns()
    assert isinstance(wire.engine.failure, NotAllowed)


def test_only_what_was_handled_is_committed_and_only_once() -> None:
    wire = Wire(start="earliest")
    wire.turns()
    wire.found(wire.pulls()[0], 0, 1, 2)
    first, second, third = (one[2] for one in wire.take())
    wire.all_of(RequestCode.UPDATE_CONSUMER_OFFSET)
    second.ack()
    third.ack()
    wire.turns(COMMIT_EVERY_S)
    assert not wire.all_of(RequestCode.UPDATE_CONSUMER_OFFSET)
    first.ack()
    wire.turns(COMMIT_EVERY_S)
    assert wire.places[0] == 3
    wire.turns(COMMIT_EVERY_S)
    assert len(wire.all_of(RequestCode.UPDATE_CONSUMER_OFFSET)) == 1


def test_without_auto_commit_only_a_commit_commits() -> None:
    wire = Wire(start="earliest", auto_commit=False)
    wire.turns()
    wire.found(wire.pulls()[0], 0, 1)
    messages = wire.take()
    messages[0][2].ack()
    wire.turns(COMMIT_EVERY_S)
    assert wire.places[0] == 0
    wait = wire.engine.queues.commit(wire.now)
    messages[1][2].ack()
    assert not wait.done.done()
    wire.turns()
    assert wait.done.done()
    assert wire.places[0] == 1, "as it was when it was called"


def test_a_commit_that_is_refused_is_sent_again() -> None:
    wire = Wire(start="earliest")
    wire.turns()
    wire.found(wire.pulls()[0], 0)
    wire.take()[0][2].ack()
    wire.codes[RequestCode.UPDATE_CONSUMER_OFFSET] = ResponseCode.SYSTEM_BUSY
    wire.turns(COMMIT_EVERY_S)
    assert wire.places[0] == 0
    wire.codes.clear()
    wire.turns(COMMIT_EVERY_S)
    assert wire.places[0] == 1


def test_an_offset_that_has_moved_drops_what_is_held_and_is_committed() -> None:
    wire = Wire(start="earliest")
    wire.turns()
    wire.found(wire.pulls()[0], 0, 1)
    old = wire.take()
    wire.turns()
    pull = wire.pulls()[0]
    wire.answer(pull, ResponseCode.PULL_OFFSET_MOVED, {"nextBeginOffset": "40"})
    wire.turns()
    assert wire.places[0] == 40
    assert wire.pulls()[0].ext["queueOffset"] == "40"
    for one in old:
        one[2].ack()
    wire.turns(COMMIT_EVERY_S)
    assert wire.places[0] == 40


def test_a_queue_is_not_pulled_while_enough_of_it_is_held() -> None:
    wire = Wire(start="earliest", max_messages=20)
    wire.turns()
    pull = wire.pulls()[0]
    assert pull.ext["maxMsgNums"] == "10", "half of them are for the other queue"
    wire.found(pull, *range(10))
    wire.turns()
    assert 0 not in wire.pulls()
    messages = wire.take()
    for one in messages[:5]:
        one[2].ack()
    wire.turns()
    assert wire.pulls()[0].ext["maxMsgNums"] == "5"


def test_bytes_are_bounded_too_but_one_message_always_has_room() -> None:
    wire = Wire(start="earliest", max_bytes=2)
    wire.turns()
    pull = wire.pulls()[0]
    assert pull.ext["maxMsgBytes"] == "1"
    wire.found(pull, 0)
    wire.turns()
    assert 0 not in wire.pulls()


def test_one_message_that_takes_long_bounds_what_may_come_again() -> None:
    wire = Wire(start="earliest")
    wire.turns()
    at, slow = 0, None
    for _ in range(2 * SPAN_MAX // PULL_MESSAGES_AT_ONCE):
        pull = wire.pulls().get(0)
        if pull is None:
            break
        wire.found(pull, *range(at, at + PULL_MESSAGES_AT_ONCE))
        at += PULL_MESSAGES_AT_ONCE
        for _, offset, message in wire.take():
            if offset:
                message.ack()
            else:
                slow = message
        wire.turns()
    assert SPAN_MAX <= at < SPAN_MAX + PULL_MESSAGES_AT_ONCE
    assert slow is not None
    slow.ack()
    wire.turns()
    assert wire.pulls()[0].ext["queueOffset"] == str(at)


def test_queues_are_handed_out_in_turn() -> None:
    wire = Wire(start="earliest")
    wire.turns()
    pulls = wire.pulls()
    wire.found(pulls[0], 0, 1, 2)
    wire.found(pulls[1], 0)
    assert wire.offsets() == [(0, 0), (1, 0), (0, 1), (0, 2)]


def test_an_empty_pull_that_is_not_held_is_followed_by_a_pause() -> None:
    wire = Wire(start="earliest")
    wire.turns()
    wire.found(wire.pulls()[0], following=0)
    wire.turns()
    assert 0 not in wire.pulls()
    wire.turns(1.0)
    assert 0 in wire.pulls()


def test_messages_that_do_not_match_move_the_place() -> None:
    wire = Wire(start="earliest")
    wire.turns()
    pull = wire.pulls()[0]
    wire.answer(pull, ResponseCode.PULL_RETRY_IMMEDIATELY, {"nextBeginOffset": "800"})
    wire.turns(COMMIT_EVERY_S)
    assert wire.pulls()[0].ext["queueOffset"] == "800"
    assert wire.places[0] == 800


def test_a_message_that_failed_goes_back_and_counts_as_ended_only_then() -> None:
    wire = Wire(start="earliest", max_retries=3)
    wire.turns()
    wire.found(wire.pulls()[0], 0)
    wire.codes[RequestCode.CONSUMER_SEND_MSG_BACK] = ResponseCode.SYSTEM_BUSY
    wire.take()[0][2].retry()
    wire.turns(COMMIT_EVERY_S)
    (back,) = wire.all_of(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert back.ext["delayLevel"] == "0"
    assert (back.ext["maxReconsumeTimes"], back.ext["originTopic"]) == ("3", "t")
    assert wire.places[0] == 0
    wire.codes.clear()
    wire.turns(AGAIN_S)
    wire.turns(COMMIT_EVERY_S)
    assert wire.places[0] == 1


def test_a_message_that_the_node_does_not_take_back_is_handed_out_again() -> None:
    wire = Wire(start="earliest")
    wire.turns()
    wire.found(wire.pulls()[0], 0)
    wire.codes[RequestCode.CONSUMER_SEND_MSG_BACK] = ResponseCode.SYSTEM_ERROR
    wire.take()[0][2].retry()
    wire.turns()
    assert wire.take() == []
    wire.turns(HANDED_BACK_S)
    ((_, offset, message),) = wire.take()
    assert (offset, message.settled) == (0, False)
    message.ack()
    wire.turns(COMMIT_EVERY_S)
    assert wire.places[0] == 1


def test_a_connection_without_answers_is_stale_but_a_held_pull_is_not() -> None:
    wire = Wire()
    wire.turns()
    assert not wire.engine.is_stale(wire.now + HELD_S)
    assert wire.engine.is_stale(wire.now + HELD_S + REQUEST_S)


def test_what_is_held_stays_when_the_connection_is_lost() -> None:
    wire = Wire(start="earliest")
    wire.turns()
    wire.found(wire.pulls()[0], 0, 1, 2)
    first = wire.engine.queues.take(wire.now)
    assert first is not None
    wire.engine.lost(wire.now)
    first.ack()
    wire.connect()
    wire.turns(COMMIT_EVERY_S)
    assert wire.places[0] == 1
    assert wire.pulls()[0].ext["queueOffset"] == "3"
    assert wire.offsets() == [(0, 1), (0, 2)]


def test_a_place_is_committed_again_after_the_connection_was_lost() -> None:
    wire = Wire(start="earliest")
    wire.turns()
    wire.found(wire.pulls()[0], 0)
    wire.take()[0][2].ack()
    wire.turns(COMMIT_EVERY_S)
    wire.places.clear()  # a gateway that died had not passed it on
    wire.engine.lost(wire.now)
    wire.connect()
    wire.turns(COMMIT_EVERY_S)
    assert wire.places == {0: 1, 1: 0}


def test_a_member_that_closes_commits_first_and_leaves_then() -> None:
    wire = Wire(start="earliest")
    wire.turns()
    wire.found(wire.pulls()[0], 0, 1)
    wire.take()[0][2].ack()
    wire.asked.clear()
    wire.engine.is_closing = True
    wire.turns()
    codes = [header.code for header, _ in wire.asked]
    assert codes == [RequestCode.UPDATE_CONSUMER_OFFSET, RequestCode.UNREGISTER_CLIENT]
    assert wire.engine.is_over
    assert wire.places[0] == 1


def test_an_orderly_member_hands_out_one_message_of_a_queue_at_a_time() -> None:
    wire = Wire(start="earliest", orderly=True)
    wire.turns()
    pulls = wire.pulls()
    wire.found(pulls[0], 0, 1)
    wire.found(pulls[1], 0)
    got = wire.take()
    assert [one[:2] for one in got] == [(0, 0), (1, 0)]
    got[0][2].retry()
    wire.turns()
    assert wire.take() == []
    wire.turns(AGAIN_S)
    ((_, offset, message),) = wire.take()
    assert (offset, message.reconsume_times) == (0, 1)
    message.ack()
    assert wire.offsets() == [(0, 1)]


def test_an_orderly_member_makes_a_dead_letter_of_what_fails_too_often() -> None:
    wire = Wire(start="earliest", orderly=True, max_retries=1)
    wire.turns()
    wire.found(wire.pulls()[0], 0, 1)
    for _ in range(2):
        ((_, offset, message),) = wire.take()
        assert offset == 0
        message.retry()
        wire.turns(AGAIN_S)
    (back,) = wire.all_of(RequestCode.CONSUMER_SEND_MSG_BACK)
    assert back.ext["delayLevel"] == str(DEAD_LETTER)
    assert wire.offsets() == [(0, 1)]


def test_an_orderly_member_waits_for_its_locks_and_renews_them() -> None:
    wire = Wire(start="earliest", orderly=True)
    wire.locked = False
    wire.turns()
    assert wire.pulls() == {}
    wire.locked = True
    wire.turns(AGAIN_S)
    wire.found(wire.pulls()[0], 0, 1)
    wire.all_of(RequestCode.LOCK_BATCH_MQ)
    wire.turns(LOCK_EVERY_S)
    assert wire.all_of(RequestCode.LOCK_BATCH_MQ)
    wire.now += LOCK_TRUST_S
    assert wire.take() == [], "nobody has said for too long that the queue is its own"


def test_an_orderly_member_that_loses_a_lock_begins_anew_where_the_group_is() -> None:
    wire = Wire(start="earliest", orderly=True)
    wire.turns()
    wire.found(wire.pulls()[0], 0, 1)
    wire.locked = False
    wire.turns(LOCK_EVERY_S)
    assert wire.take() == []
    wire.places[0], wire.locked = 1, True
    wire.turns(AGAIN_S)
    assert wire.pulls()[0].ext["queueOffset"] == "1"


@pytest.mark.parametrize("auto_commit", [True, False])
def test_turns_come_to_rest(auto_commit: bool) -> None:
    wire = Wire(start="earliest", auto_commit=auto_commit)
    wire.turns()
    wire.found(wire.pulls()[0], 0)
    for seconds in (0.0, 1.0, 5.0, 10.0):
        assert wire.turns(seconds) > wire.now


def test_a_group_that_is_refused_says_how_to_log_in_and_with_a_login_what_to_look_at() -> None:
    for given, step in (
        ({}, "credentials=keelog.credentials_of"),
        ({"credentials": Credentials("billing", "secret-1")}, "keelog acl ls billing"),
    ):
        wire = Wire(**given)
        wire.codes[RequestCode.HEART_BEAT] = ResponseCode.NO_PERMISSION
        wire.turns()
        assert isinstance(wire.engine.failure, NotAllowed)
        assert step in wire.engine.failure.hint
        assert "secret-1" not in wire.engine.failure.hint


def test_a_right_that_is_lost_is_told_at_once_and_not_with_each_pull() -> None:
    wire = Wire(credentials=Credentials("billing", "secret-1"))
    wire.turns()
    wire.all_of(RequestCode.HEART_BEAT)
    wire.codes[RequestCode.HEART_BEAT] = ResponseCode.NO_PERMISSION
    wire.answer(wire.pulls()[0], ResponseCode.NO_PERMISSION)
    wire.turns()
    assert isinstance(wire.engine.failure, NotAllowed)
