"""Makes a stopped store a master, a replica, or a copy that can follow its master again.

By hand: a master of a replica, a replica of a master. Or as a controller says: the master of an
epoch, or a copy of its master. No node may run on the store.

A rewind cuts a log at the offset of a record, after all that is cut was copied to quarantine. It is
for a replica whose master lost its end, and for an old master that has what the new one never got:
afterwards it can follow.

`lead`, `follow` and `rewind` may be killed anywhere, and run again with the same end.
"""

from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from keelog.replication.replica.comparison import same_up_to
from keelog.replication.replica.log_copy import log_bytes
from keelog.replication.replica.master_link import (
    ANSWER_S,
    MasterRefuses,
    ask_facts,
    connect_to,
)
from node.access.own_credentials import OwnLogin
from node.runtime import disk, locks, run_files
from node.runtime.process import now_ms
from node.runtime.settings import Settings
from node.store import checkpoints
from node.store.condition import check_is_store, read_checkpoint
from node.store.config.topics_file import Topic, TopicsFile
from node.store.file_cache import OpenFiles
from node.store.identity import roles, store_id
from node.store.log.reader import Bounds, LogReader
from node.store.log.segments import SegmentList, list_folder
from node.store.opening import StoppedStore, open_store
from node.store.quarantine import keep_bytes
from node.writer import broker_checkpoint, recovery
from protocol import errors, ha, ids, names
from protocol.derived.file_layouts import encode_checkpoint
from protocol.record.codec import Filler, Record


class AcknowledgedLost(errors.RefusedError):
    """The replica's log ends below what it has acknowledged: a promotion would lose that."""


class MasterLives(errors.RefusedError):
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
    lock = locks.StoreLock.acquire(root)
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
        role = roles.load_role(place)
        if role is None or role.role != roles.REPLICA:
            raise roles.WrongRole(f"the store {place} is not a replica", "keelog serve DIR runs it")
        state = run_files.read_follow_state(place)
        found = recovery.examine(place, settings)
        acknowledged = max(role.acknowledged, state.acknowledged)
        if found.end < acknowledged:
            raise AcknowledgedLost(
                f"the log ends at {found.end}, and {acknowledged} was acknowledged to {role.source}"
                f": {acknowledged - found.end} bytes are missing",
                "promote another replica; this one may follow it then",
            )
        master_end = _master_end(state, settings, though_alive)
        checkpoints.clear_clean(place)
        epoch = recovery.carry_out(found, settings.enabled_append_prop_crc)
        topics = add_topics_of_log(found, settings, state.topics_end)
        roles.save_role(
            place, roles.StoreRole(roles.MASTER, role.source, epoch, found.end, acknowledged)
        )
        lacks_bytes = max(0, master_end - found.end)
        return Promotion(
            str(place), roles.MASTER, epoch, found.end, acknowledged, role.source, master_end,
            lacks_bytes, state.contact_ms, state.progress_ms, topics,
        )  # fmt: skip


def add_topics_of_log(found: recovery.Recovery, settings: Settings, begin: int) -> tuple[str, ...]:
    """Gives each topic that has messages from log offset `begin` on the queues that they are in;
    returns the names of those that lacked some. For a log whose end is carried out.

    The master's table of topics is some seconds old. A topic with older messages alone, which is
    not in that table, was removed at the master.
    """
    file, missing = TopicsFile(found.root), dict[str, int]()
    read_queues = {name: topic.read_queues for name, topic in file.topics.items()}
    unknown = [one for one in found.tails if one.queue_id >= read_queues.get(one.topic, 0)]
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


def _last_offset(store: StoppedStore, queue: ids.Queue) -> int:
    """The log offset of a queue's last message; -1 without one. Of a queue whose files cannot be
    read, which a worker makes anew, the log's end: no promotion may fail for it."""
    try:
        reader = store.queue(*queue)
        last = None if reader is None else reader.unit(reader.max_offset - 1)
    except errors.StoreDamaged:
        return store.log.end
    return -1 if last is None else last.physical_offset


def _master_end(state: run_files.FollowState, settings: Settings, though_alive: bool) -> int:
    """The end of the master's log. Raises MasterLives, also for one that does not let this node
    log in, and one that speaks TLS and does not answer: it may take this node for a stranger."""
    place = state.remoting
    if not place:
        return state.master_end
    facts = ask_facts(place, False, *OwnLogin.of(settings))
    if isinstance(facts, MasterRefuses):
        if not though_alive:
            raise MasterLives(
                f"somebody takes requests at {place}, where the master was; {facts.why}",
                "stop it first, so that nobody sends to it any more; --force promotes all the same",
            )
        return state.master_end
    if facts is None:
        if not though_alive and _speaks_tls(place):
            raise MasterLives(
                f"somebody speaks TLS at {place}, where the master was, and gives no answer",
                "give the settings tls_* of the node with -X; --force promotes all the same",
            )
        return state.master_end
    if not though_alive:
        raise MasterLives(
            f"the master at {state.remoting} runs, and its log ends at {facts.end}",
            "stop it first, so that nobody sends to it any more; --force promotes all the same",
        )
    return facts.end


def _speaks_tls(place: str) -> bool:
    from node.access.tls import speaks_tls

    with suppress(OSError), connect_to(place, ANSWER_S, None) as connected:
        return speaks_tls(connected)
    return False


def demote(root: Path, source: str) -> roles.StoreRole:
    """Notes that the store follows `source` from now on: the next start compares both logs. Raises
    WrongRole for a store that is a replica already."""
    with stopped_store(root) as place:
        role = roles.load_role(place)
        if role is not None and role.role == roles.REPLICA:
            raise roles.WrongRole(
                f"the store {place} is a replica of {role.source} already",
                f"keelog serve {place} --follow {role.source}",
            )
        store_id.ensure_id(place)  # a note of a store without an id would not count once it has one
        changed = roles.StoreRole(roles.REPLICA, source)
        roles.save_role(place, changed)
        return changed


class Rewind(NamedTuple):
    """What a rewind cuts, or has cut. `kept_in`: the folder in quarantine, once it was applied."""

    store: str
    applied: bool
    offset: int
    end: int
    bytes: int
    records: int
    acknowledged: int
    """Up to here a master knew the log to be on this disk; the rewind may go below it."""
    kept_in: str = ""


def rewind(root: Path, offset: int, settings: Settings, apply: bool = False) -> Rewind:
    """Plans the cut, and does it with `apply`. Raises BadRequest for an offset at which no record
    begins, StoreLocked, StoreDamaged, OSError."""
    with stopped_store(root) as place:
        return rewind_held(place, offset, settings, apply)


def rewind_held(place: Path, offset: int, settings: Settings, apply: bool) -> Rewind:
    """As `rewind`, of a store whose lock is held."""
    found = recovery.examine(place, settings)
    if not found.min_offset <= offset <= found.end:
        raise errors.BadRequest(
            f"offset {offset} is outside of the log, [{found.min_offset}, {found.end}]",
            "name the begin of a record: keelog store dump DIR shows them",
        )
    records = _records_from(place, offset, found.end)
    role = roles.load_role(place)
    acknowledged = 0 if role is None else role.acknowledged
    plan = Rewind(str(place), apply, offset, found.end, found.end - offset, records, acknowledged)
    if not apply or offset == found.end:
        return plan
    if found.cut is not None:
        # What a kill left of a record goes to quarantine too, by itself.
        recovery.carry_out(found, settings.enabled_append_prop_crc)
    kept = _carry_out(place, plan, found.segment_bytes)
    return plan._replace(kept_in=str(kept))


def _records_from(root: Path, offset: int, end: int) -> int:
    """How many records are cut. Raises BadRequest where none begins at `offset`."""
    with _log(root, end) as reader:
        if offset < end and not isinstance(reader.peek(offset), Record | Filler):
            raise errors.BadRequest(
                f"no record begins at offset {offset}", "keelog store dump DIR shows where they do"
            )
        return sum(len(columns) for columns in reader.columns(offset, end))


@contextmanager
def _log(root: Path, end: int) -> Iterator[LogReader]:
    """The log as far as `end`, whatever else is known of it."""
    with closing(OpenFiles()) as files:
        folder = root / names.COMMIT_LOG_DIR
        segments = SegmentList(folder, list_folder(folder), files)
        yield LogReader(segments, Bounds(segments.start, end))


def _carry_out(root: Path, plan: Rewind, segment_bytes: int) -> Path:
    """Copies, lowers all that names the log above the cut, then cuts."""
    end = recovery.LogEnd(root, plan.offset, segment_bytes)
    report = {
        "kind": "rewound",
        "why": "keelog replica rewind",
        "cut_at": plan.offset,
        "end_before": plan.end,
        "records": plan.records,
    }
    kept = keep_bytes(root, plan.offset, log_bytes(end, plan.end), report)
    _lower(root, plan.offset)
    _lower_checkpoint(root, end)
    recovery.drop_segments_behind(end)
    recovery.zero_behind(end)
    return kept


def _lower(root: Path, offset: int) -> None:
    """Nothing of ours names an offset above the cut any more: workers then reconcile with it as
    with any epoch that ended."""
    checkpoints.clear_clean(root)
    removed = checkpoints.load_removed(root)
    if removed.within(0, offset) is not removed:
        checkpoints.save_removed(root, removed.within(0, offset))
    tails = checkpoints.load_tails(root)
    if tails is not None and tails.at > offset:
        disk.unlink(checkpoints.own_dir(root) / checkpoints.TAILS_FILE)
        disk.sync_dir(checkpoints.own_dir(root))
    lines = [line._replace(start=min(line.start, offset)) for line in checkpoints.load_epochs(root)]
    if lines:
        checkpoints.save_epochs(root, lines)
    floor = checkpoints.Floor(root)
    floor.save(offset)
    floor.close()
    _lower_acknowledged(root, offset)


def _lower_acknowledged(root: Path, offset: int) -> None:
    """A promotion goes by what was acknowledged, as both of its notes say, and by what the log had
    when the master's topics were taken over."""
    role, state = roles.load_role(root), run_files.read_follow_state(root)
    if role is not None and role.acknowledged > offset:
        roles.save_role(root, role._replace(acknowledged=offset))
    if max(state.acknowledged, state.topics_end) > offset:
        acknowledged, topics_end = min(state.acknowledged, offset), min(state.topics_end, offset)
        run_files.write_follow_state(
            root, state._replace(acknowledged=acknowledged, topics_end=topics_end)
        )


def _lower_checkpoint(root: Path, end: recovery.LogEnd) -> None:
    """RocketMQ's checkpoint says no more than the log holds."""
    lowered = broker_checkpoint.lowered_checkpoint(
        read_checkpoint(root), end.offset, _last_time(end)
    )
    path = root / names.CHECKPOINT_FILE
    if path.exists():
        disk.write_atomically(path, encode_checkpoint(lowered))


def _last_time(end: recovery.LogEnd) -> int:
    """The store time of the last record before the cut, of the segment that it is in; else 0."""
    with _log(end.root, end.offset) as reader:
        begin = max(end.offset - 1 - (end.offset - 1) % end.segment_bytes, reader.min_offset)
        times = [int(found.store_timestamp[-1]) for found in reader.columns(begin, end.offset)]
        return times[-1] if times else 0


class OldEpoch(errors.RefusedError):
    """The controller elected with a number below that of the store's last master."""


class Joined(NamedTuple):
    """A store that is to follow: its end, and what was cut off after that."""

    end: int
    cut_bytes: int = 0
    cut_records: int = 0
    kept_in: str = ""


def lead(root: Path, settings: Settings, epoch: int) -> int:
    """Begins the epoch at the end of the log's last whole record, durably; returns that end. Raises
    OldEpoch, AcknowledgedLost, StoreDamaged; then nothing is changed."""
    with stopped_store(root) as place:
        known, role = roles.load_master_epochs(place), roles.load_role(place)
        last = ha.last_number(known)
        if epoch < last:
            raise OldEpoch(
                f"the controller says epoch {epoch}, and epoch {last} wrote this log",
                "controllers that lost their data? give the group another --broker-name",
            )
        found = recovery.examine(place, settings)
        acknowledged = role.acknowledged if role is not None and role.role == roles.REPLICA else 0
        if found.end < acknowledged:
            raise AcknowledgedLost(
                f"the log ends at {found.end}, and {acknowledged} was acknowledged",
                "start another node of the group; this one may follow it then",
            )
        if epoch > last:
            # From here on others copy: what the epoch begins with has to be on the disk.
            checkpoints.clear_clean(place)
            recovery.carry_out(found, settings.enabled_append_prop_crc)
            # The first epoch owns all that the log has.
            start = found.end if known else found.min_offset
            kept = ha.epochs_from(known, found.min_offset)
            roles.save_master_epochs(place, ha.with_epoch(kept, ha.MasterEpoch(epoch, start)))
        if role is not None and role.role == roles.REPLICA:
            add_topics_of_log(found, settings, run_files.read_follow_state(place).topics_end)
        store_id.ensure_id(place)  # a note of a store without an id would not count once it has one
        roles.save_role(place, roles.StoreRole(roles.MASTER, "", epoch, found.end, acknowledged))
        return found.end


def follow(root: Path, settings: Settings, source: str, greeting: ha.MasterGreeting) -> Joined:
    """Cuts what the master does not have, after it was copied to quarantine, and notes the role.
    Raises NoCommonEpoch, StoreDamaged, BadRequest where the log begins after the common point."""
    with stopped_store(root) as place:
        found = recovery.examine(place, settings)
        joined = Joined(found.end)
        if found.end > found.min_offset:
            point = same_up_to(place, found.end, greeting)
            if point < found.end:
                cut = rewind_held(place, point, settings, apply=True)
                joined = Joined(point, cut.bytes, cut.records, cut.kept_in)
        roles.save_master_epochs(
            place, ha.epochs_below(roles.load_master_epochs(place), joined.end)
        )
        store_id.ensure_id(place)
        role = roles.load_role(place)
        acknowledged = 0 if role is None else min(role.acknowledged, joined.end)
        roles.save_role(place, roles.StoreRole(roles.REPLICA, source, 0, joined.end, acknowledged))
        return joined
