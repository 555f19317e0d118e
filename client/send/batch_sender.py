"""Sends batches: learns how many queues a topic has, repeats and splits, hands out receipts."""

from collections import deque
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from time import monotonic

from client.operations import DEFAULT_WRITE_QUEUES
from client.results import TopicInfo
from client.send.batch_builder import SentBatch
from client.send.batch_receipt import read_receipt
from client.send.record_batch import (
    EncodedMessage,
    EntryBatch,
    RequestPart,
    Turns,
    make_parts,
    read_receipts,
    smaller,
)
from client.transport.io_thread import IoThread
from client.transport.request import Call, NodeAnswer, NodeRole, Outcome
from client.transport.timers import Action
from protocol.errors import BadRequest, IllegalMessage, MqError, RefusedError, UnknownTopic

TOPICS_S_MAX = 30.0
"""The queues of topics are asked for again after so long, as RocketMQ's clients do."""
TOPICS_TIMEOUT_S = 2.0


class BatchSender:
    """One for each client. All but `send` runs on the I/O thread."""

    def __init__(self, io: IoThread) -> None:
        self._io = io
        self._turns = Turns()
        self._write_queues: dict[str, int] = {}
        self._known_at = -TOPICS_S_MAX
        self._waiting: deque[EntryBatch | SentBatch] = deque()
        self._asking = False

    def send(self, batch: EntryBatch | SentBatch) -> bool:
        """Sends the batch, after those that came before it; False when the client is closed."""
        return self._io.post(lambda: self._take(batch))

    def _take(self, batch: EntryBatch | SentBatch) -> None:
        """Batches keep their order, also while one of them waits for the topics."""
        if self._waiting or not self._knows(batch):
            self._waiting.append(batch)
            self._ask()
        else:
            self._begin(batch)

    def _begin(self, batch: EntryBatch | SentBatch) -> None:
        if isinstance(batch, SentBatch):
            self._submit_records(batch)
        else:
            self._submit(batch, batch.entries)

    def _knows(self, batch: EntryBatch | SentBatch) -> bool:
        topics = batch.open_topics()
        if not topics:
            return True
        fresh = monotonic() < self._known_at + TOPICS_S_MAX
        return fresh and topics <= self._write_queues.keys()

    def _ask(self) -> None:
        if self._asking:
            return
        self._asking = True
        deadline = max(monotonic() + TOPICS_TIMEOUT_S, self._waiting[0].deadline)
        self._io.start(Call(NodeRole.WRITER, "topics", {}, deadline, done=self._learned))

    def _learned(self, outcome: Outcome) -> None:
        """Goes on with the batches that wait, or fails them with the error."""
        self._asking = False
        if isinstance(outcome, NodeAnswer):
            found = (TopicInfo.of(item) for item in outcome.header["topics"])
            self._write_queues = {topic.topic: topic.write_queues for topic in found}
            self._known_at = monotonic()
        waiting, self._waiting = self._waiting, deque()
        for batch in waiting:
            if isinstance(outcome, MqError):
                batch.fail(outcome)
            else:
                # A topic that is still unknown will be made by the node.
                self._begin(batch)

    def _submit_records(self, batch: SentBatch) -> None:
        batch.place(self._write_queues, DEFAULT_WRITE_QUEUES)
        self._io.start(batch.call(partial(self._answered_records, batch)))

    def settle(self, batch: SentBatch, outcome: Outcome) -> None:
        """On any thread: ends a batch that somebody else has sent, or does what may help."""
        if isinstance(outcome, RefusedError) and self._io.post(
            lambda: self._answered_records(batch, outcome)
        ):
            return
        batch.done(outcome if isinstance(outcome, MqError) else read_receipt(batch, outcome))

    def _answered_records(self, batch: SentBatch, outcome: Outcome) -> None:
        if isinstance(outcome, BadRequest | UnknownTopic) and not batch.relearned:
            self._known_at = monotonic() - TOPICS_S_MAX
            if batch.open_topics():
                # Perhaps the topic has other queues than it had.
                batch.relearned = True
                self._take(batch)
                return
        if batch.apart is not None and isinstance(outcome, IllegalMessage):
            whole = batch.apart(batch)
            if groups := smaller(whole.entries, outcome):
                self._in_turn(whole, groups, None)
                return
        batch.done(outcome if isinstance(outcome, MqError) else read_receipt(batch, outcome))

    def _submit(
        self, batch: EntryBatch, entries: Sequence[EncodedMessage], then: Action | None = None
    ) -> None:
        """Sends the entries; `then` is done when the last of their requests has ended."""
        parts = make_parts(batch, entries, self._write_queues, self._turns, DEFAULT_WRITE_QUEUES)
        for part in parts:
            self._io.start(
                Call(
                    NodeRole.WRITER,
                    "append",
                    part.fields(batch.wait),
                    batch.deadline,
                    payload=part.records,
                    repeatable=False,
                    done=partial(self._answered, batch, part, then if part is parts[-1] else None),
                )
            )

    def _answered(
        self, batch: EntryBatch, part: RequestPart, then: Action | None, outcome: Outcome
    ) -> None:
        if isinstance(outcome, RefusedError) and self._helped(batch, part, then, outcome):
            return
        batch.deliver(
            part.entries, outcome if isinstance(outcome, MqError) else read_receipts(part, outcome)
        )
        if then is not None:
            then()

    def _helped(
        self, batch: EntryBatch, part: RequestPart, then: Action | None, error: RefusedError
    ) -> bool:
        """A refusal has stored nothing, so what may help is tried."""
        self._known_at = monotonic() - TOPICS_S_MAX
        if groups := smaller(part.entries, error):
            self._in_turn(batch, groups, then)
            return True
        if isinstance(error, BadRequest | UnknownTopic) and not batch.relearned:
            again = replace(batch, entries=list(part.entries), relearned=True)
            if again.open_topics() and then is None:
                # Perhaps the topic has other queues than it had.
                self._take(again)
                return True
        return False

    def _in_turn(
        self, batch: EntryBatch, groups: Sequence[Sequence[EncodedMessage]], then: Action | None
    ) -> None:
        """One group after the other, so that the order within each queue stays."""
        first, *rest = groups
        following = partial(self._in_turn, batch, rest, then) if rest else then
        self._submit(batch, first, following)
