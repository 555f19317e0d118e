"""The gateway's way to the writer: who is told that a lone record has its outcome."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from client.core import ClientCore
from client.results import Receipt
from client.send.record_batch import EncodedMessage, EntryBatch
from gateway.connection import Gathering
from gateway.sending.writer_link import WriterLink
from node.runtime.settings import Settings
from protocol.errors import MqError, NodeBusy


class Sender:
    """Keeps the batches that it is given, until the test ends them."""

    def __init__(self) -> None:
        self.batches: list[EntryBatch] = []

    def carry(self, batch: EntryBatch, _: object) -> bool:
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

    def stored(self, receipt: Receipt) -> None:
        raise AssertionError(f"stored: {receipt}")

    def refused(self, error: MqError) -> None:
        self.error = error


def entry() -> EncodedMessage:
    return EncodedMessage(b"record", "topic", 0, None, "key", Slot())


def run(tmp_path: Path, act: Callable[[WriterLink, Sender, Gathering], None]) -> int:
    """How often it was told, in a loop."""
    told = 0

    def tell() -> None:
        nonlocal told
        told += 1

    async def inside() -> None:
        sender, gathering = Sender(), Gathering()
        core = SimpleNamespace(io=None, sender=sender, adopt=lambda link: None)
        link = WriterLink(cast(ClientCore, core), tmp_path, Settings(), gathering)
        link.after_lone = tell
        act(link, sender, gathering)
        await asyncio.sleep(0)

    asyncio.run(inside())
    return told


def looks(link: WriterLink, found: Callable[[], Any]) -> None:
    """`found` happens while the link looks for an outcome."""
    cast(Any, link)._link.look_awake = found


def test_a_lone_record_that_gets_its_outcome_in_the_look_is_told(tmp_path: Path) -> None:
    def act(link: WriterLink, sender: Sender, gathering: Gathering) -> None:
        looks(link, sender.end)
        one = entry()
        with gathering:
            link.put(one)
        assert isinstance(one.slot.error, NodeBusy)
        assert link.waiting_bytes == 0

    assert run(tmp_path, act) == 1


def test_a_record_without_an_outcome_and_two_at_once_are_not_told(tmp_path: Path) -> None:
    def act(link: WriterLink, sender: Sender, gathering: Gathering) -> None:
        looks(link, lambda: None)
        with gathering:
            link.put(entry())
        sender.end()
        with gathering:
            link.put(entry())
            link.put(entry())
        assert [len(batch.entries) for batch in sender.batches] == [2]
        sender.end()

    assert run(tmp_path, act) == 0


def test_while_outcomes_are_taken_nobody_looks_however_deep(tmp_path: Path) -> None:
    def act(link: WriterLink, sender: Sender, gathering: Gathering) -> None:
        def look() -> None:
            raise AssertionError("it looked while replies waited for it")

        looks(link, look)
        with link:
            with link:
                pass
            with gathering:
                link.put(entry())
        assert len(sender.batches) == 1
        sender.end()

    assert run(tmp_path, act) == 0
