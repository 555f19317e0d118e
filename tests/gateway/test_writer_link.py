"""The gateway's way to the writer: what goes when, and after what the loop looks for more."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from keelog.client.core import ClientCore
from keelog.client.results import Receipt
from keelog.client.send.record_batch import (
    ColumnBatch,
    EncodedColumns,
    EntryBatch,
    RecordBatch,
)
from keelog.client.transport.exchange import Retry
from keelog.gateway.connection import Gathering
from keelog.gateway.loop import AwakeSelector
from keelog.gateway.sending.writer_link import WriterLink
from node.runtime.settings import Settings
from protocol.errors import MqError, NodeBusy
from protocol.record.encode import EncodedBatch
from protocol.record.waiting import RealPlace


class Sender:
    """Keeps the batches that it is given, until the test ends them."""

    def __init__(self) -> None:
        self.batches: list[Any] = []

    def carry(self, batch: RecordBatch, _: object) -> bool:
        self.batches.append(batch)
        return True

    def end(self) -> None:
        """All of them are refused, as a busy writer does."""
        while self.batches:
            batch = self.batches.pop(0)
            batch.deliver(batch.entries, NodeBusy("busy"))


class Slot:
    def __init__(self) -> None:
        self.error: MqError | None = None

    def __call__(self, outcome: Receipt | MqError) -> None:
        assert isinstance(outcome, MqError)
        self.error = outcome


def encoded_batch() -> EncodedBatch:
    return EncodedBatch(np.frombuffer(b"record", np.uint8), np.array([6], np.uint32), 0)


def put(link: WriterLink) -> Slot:
    slot = Slot()
    link.put(b"record", RealPlace("topic", 0), "key", slot)
    return slot


class Selector:
    """Counts how often it shall look."""

    def __init__(self) -> None:
        self.is_awake = True
        self.asked = 0

    def look_once(self) -> None:
        self.asked += 1


def run(
    tmp_path: Path,
    act: Callable[[WriterLink, Sender, Gathering], None],
    settings: Settings | None = None,
) -> int:
    """How often the selector shall look for the next request, in a loop."""
    selector = Selector()

    async def inside() -> None:
        sender, gathering = Sender(), Gathering()
        io = SimpleNamespace(retry=Retry())
        core = SimpleNamespace(io=io, sender=sender, adopt=lambda link: None)
        link = WriterLink(cast(ClientCore, core), tmp_path, settings or Settings(), gathering)
        link.selector = cast(AwakeSelector, selector)
        act(link, sender, gathering)
        await asyncio.sleep(0)

    asyncio.run(inside())
    return selector.asked


def looks(link: WriterLink, found: Callable[[], Any]) -> None:
    """`found` happens while the link looks for an outcome."""
    cast(Any, link)._link.look_awake = found


def no_look() -> None:
    raise AssertionError("it looked")


def test_after_a_lone_record_the_selector_looks_for_the_next_request(tmp_path: Path) -> None:
    def act(link: WriterLink, sender: Sender, gathering: Gathering) -> None:
        looks(link, sender.end)
        with gathering:
            slot = put(link)
        assert isinstance(slot.error, NodeBusy)
        assert link.waiting_bytes == 0

    assert run(tmp_path, act) == 1


def test_where_looks_bring_nothing_the_link_waits_for_the_loop(tmp_path: Path) -> None:
    def act(link: WriterLink, sender: Sender, gathering: Gathering) -> None:
        looks(link, no_look)
        cast(Any, link.selector).is_awake = False
        with gathering:
            put(link)
        sender.end()

    assert run(tmp_path, act) == 1, "the selector counts how many fall out"


def test_a_loop_without_such_a_selector_never_looks(tmp_path: Path) -> None:
    def act(link: WriterLink, sender: Sender, gathering: Gathering) -> None:
        looks(link, no_look)
        link.selector = None
        with gathering:
            put(link)
        sender.end()

    assert run(tmp_path, act) == 0


def test_after_two_records_at_once_nobody_looks(tmp_path: Path) -> None:
    def act(link: WriterLink, sender: Sender, gathering: Gathering) -> None:
        looks(link, no_look)
        with gathering:
            put(link)
            put(link)
        assert [len(batch.entries) for batch in sender.batches] == [2]
        sender.end()

    assert run(tmp_path, act) == 0


def test_while_outcomes_are_taken_the_link_does_not_look_however_deep(tmp_path: Path) -> None:
    def act(link: WriterLink, sender: Sender, gathering: Gathering) -> None:
        looks(link, no_look)
        with link:
            with link:
                pass
            with gathering:
                put(link)
        assert len(sender.batches) == 1
        sender.end()

    assert run(tmp_path, act) == 1


def test_a_batch_goes_at_once_and_a_single_record_at_the_end_of_the_turn(tmp_path: Path) -> None:
    def act(link: WriterLink, sender: Sender, gathering: Gathering) -> None:
        looks(link, no_look)
        columns = EncodedColumns("topic", 0, encoded_batch(), ["key"])
        found: list[object] = []
        with gathering:
            put(link)
            link.put_batch(columns, found.append, once=False)
            assert [type(batch) for batch in sender.batches] == [ColumnBatch]
        assert [type(batch) for batch in sender.batches] == [ColumnBatch, EntryBatch]
        cast(Any, sender.batches.pop(0)).done(NodeBusy("busy"))
        assert len(found) == 1
        sender.end()
        assert link.waiting_bytes == 0

    assert run(tmp_path, act) == 0


def test_a_batch_waits_while_the_writer_has_two_mebibytes_of_others(tmp_path: Path) -> None:
    mebibyte = EncodedBatch(np.zeros(1 << 20, np.uint8), np.array([1 << 20], np.uint32), 0)

    def act(link: WriterLink, sender: Sender, _: Gathering) -> None:
        found: list[object] = []
        for key in "abc":
            columns = EncodedColumns("topic", 0, mebibyte, [key])
            link.put_batch(columns, found.append, once=False)
        assert [batch.columns.unique_keys for batch in sender.batches] == [["a"], ["b"]]
        cast(Any, sender.batches.pop(0)).done(NodeBusy("busy"))
        assert [batch.columns.unique_keys for batch in sender.batches] == [["b"], ["c"]]
        for batch in sender.batches:
            cast(Any, batch).done(NodeBusy("busy"))
        assert (len(found), link.waiting_bytes) == (3, 0)

    assert run(tmp_path, act) == 0


def test_who_is_woken_by_answers_hears_of_each_request_and_each_outcome(tmp_path: Path) -> None:
    def act(link: WriterLink, sender: Sender, gathering: Gathering) -> None:
        heard: list[tuple[str, bool]] = []
        cast(Any, link.selector).is_awake = False
        link.on_request = lambda: heard.append(("request", link.is_answered_soon))
        link.on_outcome = lambda: heard.append(("outcome", link.is_answered_soon))
        with gathering:
            put(link)
        columns = EncodedColumns("topic", 0, encoded_batch(), ["key"])
        link.put_batch(columns, lambda _: None, once=False)
        assert heard == [("request", True)] * 2
        cast(Any, sender.batches.pop()).done(NodeBusy("busy"))
        assert heard[2:] == [("outcome", True)], "the record is still on its way"
        sender.end()
        assert heard[3:] == [("outcome", False)]

    run(tmp_path, act)


@pytest.mark.parametrize(
    "slow", [{"flush_disk_type": "SYNC_FLUSH"}, {"broker_role": "SYNC_MASTER"}], ids=str
)
def test_an_answer_that_waits_for_disk_or_follower_is_no_news_of_others_records(
    tmp_path: Path, slow: dict[str, str]
) -> None:
    settings = Settings(**cast(Any, slow), in_sync_replicas=2)

    def act(link: WriterLink, sender: Sender, gathering: Gathering) -> None:
        cast(Any, link.selector).is_awake = False
        with gathering:
            put(link)
        assert len(sender.batches) == 1
        assert not link.is_answered_soon
        sender.end()

    run(tmp_path, act, settings)
