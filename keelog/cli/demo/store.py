"""The messages of the demo, from stores that a RocketMQ broker wrote."""

import tarfile
from collections import Counter
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import keelog
from node.store.opening import StoppedStore, open_store
from protocol.errors import NotAStore, PropertiesTooLarge, StoreDamaged
from protocol.ids import Queue
from protocol.names import NOT_FOR_CLIENTS, SYSTEM_PREFIX
from protocol.record.codec import BORN_HOST_V6, STORE_HOST_V6, Record, Torn
from protocol.record.columns import RecordColumns
from protocol.record.encode import FORBIDDEN_SYS_FLAGS, encode_message
from protocol.record.properties import CRC32, UNIQUE_KEY, decode_raw_properties

STORES = Path(__file__).with_name("stores")
"""Packed stores that RocketMQ wrote: tests/golden/README.md says what is in them."""
_DELAYS = (b"DELAY", b"TIMER_DELAY_SEC", b"TIMER_DELAY_MS", b"TIMER_DELIVER_MS")
_HOST_FLAGS = BORN_HOST_V6 | STORE_HOST_V6


@dataclass(slots=True)
class Input:
    """The messages to send, in log order, and why others are left out."""

    records: list[Record] = field(default_factory=list)
    left_out: Counter[str] = field(default_factory=Counter)

    @property
    def queues(self) -> dict[Queue, list[Record]]:
        """The messages of each queue, in order."""
        found: dict[Queue, list[Record]] = {}
        for record in self.records:
            found.setdefault(Queue(record.topic, record.head.queue_id), []).append(record)
        return found


def find_store(name: str, into: Path) -> Path:
    """The directory of a store: `name` itself, or the store of STORES of that name, unpacked.

    Raises NotAStore when there is neither.
    """
    if Path(name).is_dir():
        return Path(name)
    archive = STORES / f"{name}.tar.gz"
    if not archive.is_file():
        raise NotAStore(
            f"there is no directory {name} and no {archive}, a store that a broker wrote",
            "keelog demo --from DIR with a store of yours",
        )
    with tarfile.open(archive) as packed:
        if hasattr(tarfile, "data_filter"):
            packed.extractall(into, filter="data")
        else:  # Debian 12's Python 3.11.2 is older than the filters; the archives are our own.
            packed.extractall(into)
    return into / name


def read_store(path: Path, found: Input) -> Torn | None:
    """Adds the messages of a store. Returns what ends its log, where that is not a proper end.

    Raises StoreDamaged for a log that breaks off before its first record, and what `open_store`
    raises.
    """
    with open_store(path) as store:
        count = 0
        for record in _records(store.log.columns(store.log.min_offset), store):
            count += 1
            reason = why_not(record)
            if reason:
                found.left_out[reason] += 1
            else:
                found.records.append(record)
        stop = store.log.stopped or store.tail.stop
        if stop is None or stop.kind == "end":
            return None
        if not count:
            raise StoreDamaged(
                str(store.log.segments.folder),
                stop.position,
                f"no message can be read: {stop.why}",
                f"keelog store verify {path} --deep",
            )
        return stop


def _records(columns: Iterator[RecordColumns], store: StoppedStore) -> Iterator[Record]:
    for window in columns:
        for offset in window.physical_offset.tolist():
            yield store.log.record_at(offset)


def why_not(record: Record) -> str:
    """Why a client may not send this again; empty when it may."""
    if record.topic in NOT_FOR_CLIENTS or record.topic.lower().startswith(SYSTEM_PREFIX):
        return "of system topics"
    if record.head.sys_flag & FORBIDDEN_SYS_FLAGS:
        return "parts of transactions"
    pairs = decode_raw_properties(record.properties_raw)
    if any(name in pairs for name in _DELAYS):
        return "delayed"
    try:
        for name, value in pairs.items():
            name.decode(), value.decode()
    except UnicodeDecodeError:
        return "with properties that are no text"
    if any(b"\1" in value for value in pairs.values()):
        return "with malformed properties"
    try:
        encode_message(outgoing(record).draft(record.topic, "U" * 32, 0), crc=True)
    except PropertiesTooLarge:
        return "without room for the whole-record checksum"
    return ""


def outgoing(record: Record, without: Collection[str] = ()) -> keelog.OutgoingMessage:
    """The message as a client sends it again: all but its place, its checksum, and `without`."""
    left_out = {CRC32, *without}
    properties = {name: text for name, text in record.properties.items() if name not in left_out}
    return keelog.OutgoingMessage(
        record.raw_body,
        topic=record.topic,
        properties=properties,
        queue_id=record.head.queue_id,
        flag=record.head.flag,
        sys_flag=record.head.sys_flag & ~_HOST_FLAGS,
        born_timestamp=record.head.born_timestamp,
        born_host=str(record.born_host),
        reconsume_times=record.head.reconsume_times,
    )


def same(sent: Record, stored: Record) -> bool:
    """Whether all fields came back. A message without UNIQ_KEY got one from the client."""
    given = () if sent.unique_key else (UNIQUE_KEY,)
    return outgoing(sent, given) == outgoing(stored, given)
