"""Makes a master of a replica, or a replica of a master. The node must have stopped."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from keelog.replication.replica.master_facts import ask_facts
from node.runtime.locks import StoreLock
from node.runtime.process import now_ms
from node.runtime.run_files import FollowState, read_follow_state
from node.runtime.settings import Settings
from node.store.checkpoints import clear_clean
from node.store.condition import check_is_store
from node.store.config.topics_file import Topic, TopicsFile
from node.store.identity.roles import MASTER, REPLICA, StoreRole, WrongRole, load_role, save_role
from node.store.identity.store_id import ensure_id
from node.store.opening import StoppedStore, open_store
from node.writer.recovery import Recovery, carry_out, examine
from protocol.errors import RefusedError, StoreDamaged
from protocol.ids import Queue


class AcknowledgedLost(RefusedError):
    """The replica's log ends below what it has acknowledged: a promotion would lose that."""


class MasterLives(RefusedError):
    """The master still runs: with a promotion there would be two."""


class Promotion(NamedTuple):
    """A store after its promotion, and what it may lack of the master's log."""

    store: str
    role: str
    epoch: int
    offset: int
    """Where its own log begins."""
    acknowledged: int
    source: str
    master_end: int
    """The end of the master's log, when it was last known."""
    lacks_bytes: int
    last_contact_ms: int
    """When that was, in ms since 1970; 0: not known."""
    progress_ms: int
    """Delayed messages that the master delivered after this time, in ms since 1970, come again; 0:
    nobody knows what it delivered."""
    topics: tuple[str, ...]
    """Topics that were made, or got queues, because the log has messages of them."""


@contextmanager
def stopped_store(root: Path) -> Iterator[Path]:
    """The store under its lock. Raises StoreLocked while a node runs, NotAStore."""
    check_is_store(root)
    root = root.resolve()
    lock = StoreLock.acquire(root)
    try:
        yield root
    finally:
        lock.release()


def promote(root: Path, settings: Settings, though_alive: bool = False) -> Promotion:
    """Ends the log where its last whole record ends, begins a new epoch, and notes the role.

    Raises WrongRole for a store that is not a replica, AcknowledgedLost, MasterLives unless
    `though_alive`, and StoreDamaged for a log that ends below what was durable. Nothing is changed
    then.
    """
    with stopped_store(root) as place:
        role = load_role(place)
        if role is None or role.role != REPLICA:
            raise WrongRole(f"the store {place} is not a replica", "keelog serve DIR runs it")
        state = read_follow_state(place)
        found = examine(place, settings)
        acknowledged = max(role.acknowledged, state.acknowledged)
        if found.end < acknowledged:
            raise AcknowledgedLost(
                f"the log ends at {found.end}, and {acknowledged} was acknowledged to {role.source}"
                f": {acknowledged - found.end} bytes are missing",
                "promote another replica; this one may follow it then",
            )
        master_end = _master_end(state, though_alive)
        clear_clean(place)
        epoch = carry_out(found, settings.enabled_append_prop_crc)
        topics = add_topics_of_log(found, settings, state.topics_end)
        save_role(place, StoreRole(MASTER, role.source, epoch, found.end, acknowledged))
        return Promotion(
            str(place),
            MASTER,
            epoch,
            found.end,
            acknowledged,
            role.source,
            master_end,
            max(0, master_end - found.end),
            state.contact_ms,
            state.progress_ms,
            topics,
        )


def add_topics_of_log(found: Recovery, settings: Settings, begin: int) -> tuple[str, ...]:
    """Gives each topic that has messages from log offset `begin` on the queues that they are in;
    returns the names of those that lacked some. For a log whose end is carried out.

    The master's table of topics is some seconds old. A topic with older messages alone, which is
    not in that table, was removed at the master.
    """
    file, missing = TopicsFile(found.root), dict[str, int]()
    unknown = [queue for queue in found.tails if not _has_queue(file, queue)]
    if not unknown:
        return ()
    with open_store(found.root, settings) as store:
        for queue in unknown:
            if _last_offset(store, queue) >= begin:
                missing[queue.topic] = max(queue.queue_id + 1, missing.get(queue.topic, 0))
    made = []
    for name, count in missing.items():
        topic = file.topics.get(name) or Topic(name, 0, 0)
        write_queues = max(topic.write_queues, count)
        made.append(replace(topic, read_queues=count, write_queues=write_queues))
    if made:
        file.put(made, now_ms())
    return tuple(sorted(missing))


def _last_offset(store: StoppedStore, queue: Queue) -> int:
    """The log offset of a queue's last message; -1 without one. Of a queue whose files cannot be
    read, which a worker makes anew, the log's end: no promotion may fail for it."""
    try:
        reader = store.queue(*queue)
        last = None if reader is None else reader.unit(reader.max_offset - 1)
    except StoreDamaged:
        return store.log.end
    return -1 if last is None else last.physical_offset


def _has_queue(file: TopicsFile, queue: Queue) -> bool:
    known = file.topics.get(queue.topic)
    return known is not None and queue.queue_id < known.read_queues


def _master_end(state: FollowState, though_alive: bool) -> int:
    """The end of the master's log. Raises MasterLives."""
    facts = ask_facts(state.remoting, with_segments=False) if state.remoting else None
    if facts is None:
        return state.master_end
    if not though_alive:
        raise MasterLives(
            f"the master at {state.remoting} runs, and its log ends at {facts.end}",
            "stop it first, so that nobody sends to it any more; --force promotes all the same",
        )
    return facts.end


def demote(root: Path, source: str) -> StoreRole:
    """Notes that the store follows `source` from now on: the next start compares both logs.

    Raises WrongRole for a store that is a replica already.
    """
    with stopped_store(root) as place:
        role = load_role(place)
        if role is not None and role.role == REPLICA:
            raise WrongRole(
                f"the store {place} is a replica of {role.source} already",
                f"keelog serve {place} --follow {role.source}",
            )
        ensure_id(place)  # a note of a store without an id would not count once it has one
        changed = StoreRole(REPLICA, source)
        save_role(place, changed)
        return changed
