"""The generated parts of docs/format.md: layouts, and dumps of small examples.

`python -m scripts.docs.pages` puts them into the page.
"""

import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from node.runtime import state_page
from node.store import checkpoints
from protocol.derived import file_layouts as layouts
from protocol.derived.index_build import IndexImage
from protocol.derived.removed import Removed
from protocol.ids import Host, Queue
from protocol.layout import StructLayout
from protocol.record import codec, encode, patch, properties
from protocol.record.codec import BORN_HOST_V6, FILLER_HEAD, SHORT_HEAD, STORE_HOST_V6, Record

_NUMBER_BYTES = 8
INDEX_KEYS = (("k1", 0, 0), ("k2", 0, 0), ("k1", 165, 2_500), ("Hello", 330, 61_000))
"""Key, log offset and milliseconds after the first message."""
INDEX_GEOMETRY = layouts.IndexGeometry(slot_count=5, index_num=10)
_EXAMPLE_ID = "3f0c9a51e2774b6d8e10c2aa47f95b36"
MEANINGS = {
    "epoch": "the writer's epoch; 0 while the numbers after it are being replaced",
    "epoch_start": "where the log ended when the epoch began",
    "min_offset": "start of the oldest segment",
    "appended": "end of what was written",
    "committed": "end of what a reader could see (differs with the transient pool alone)",
    "flushed": "end of what survives a power loss",
    "removals": "the number of the note of removed topics",
    "readable": "end of what may be read and indexed",
    "pid": "id of the process that writes this page",
    "heartbeat_ms": "time of its last sign of life, ms since 1970",
    "state": ", ".join(f"{i} {name}" for i, name in enumerate(state_page.STATE_NAMES)),
    "segment_bytes": "length of a segment",
    "flush_began_ms": "when the current flush began, ms since 1970; 0: no flush is under way",
    "wants_acknowledged": "log offset that a request waits for followers to have; 0: none waits",
    "newest_ms": "store time of the newest message, ms since 1970; 0: there is none",
    "records": "records appended or dispatched since the process began",
    "dispatched": "queues or index hold everything below this log offset; enough followers do",
    "saved": "log offset below which it is synced and in the progress file",
    "damaged_at": "log offset of the damage that stopped it, or -1",
    "requests": "requests answered (readers)",
    "held": "pulls that wait now (readers); connections (followers)",
    "growths": "turns in which queues have grown (queue workers)",
    "wake_at": "log offset that the log must reach to wake a sleeping worker or reader",
    "listens": "1 while a reader waits for queues to grow",
    "dropped_lines": "lines for stderr that the process dropped because nobody read them",
}
_IDENTITY = "checksums of the machine's boot id, and of the file's device and inode"


def record_dump() -> str:
    """The example record, field by field."""
    raw = example_record()
    lines = _dump_rows(SHORT_HEAD, raw)
    record = codec.decode(raw, 0)
    assert isinstance(record, Record)
    at = SHORT_HEAD.size
    lines.append(_dump_line(at, record.raw_body, f"body = {record.raw_body.decode()}"))
    at += len(record.raw_body)
    topic = record.topic.encode()
    lines.append(_dump_line(at, raw[at : at + 1], f"topic length = {len(topic)}"))
    lines.append(_dump_line(at + 1, topic, f"topic = {record.topic}"))
    at += 1 + len(topic)
    length = len(record.properties_raw)
    lines.append(_dump_line(at, raw[at : at + 2], f"properties length = {length}"))
    at += 2
    for pair in record.properties_raw.split(bytes([properties.PAIR_END]))[:-1]:
        whole = pair + bytes([properties.PAIR_END])
        shown = whole if len(whole) <= 12 else whole[:10]
        dots = "" if shown == whole else " …"
        lines.append(f"{at:5}  {shown.hex() + dots:<24}  {_visible(whole)}")
        at += len(whole)
    lines.append(f"{at:5}  {'':<24}  end: {len(raw)} bytes")
    return _fenced(lines)


def sealed_tail() -> str:
    """The last property of the same record when it is sealed."""
    raw = example_record(crc=True)
    tail = raw[-properties.CRC_PROPERTY_BYTES :]
    at = len(raw) - properties.CRC_PROPERTY_BYTES
    return _fenced((f"{at:5}  {tail.hex()}", f"       {_visible(tail)}"))


def record_sizes() -> str:
    """How long the fixed part is, for each pair of hosts."""
    lines = [
        "| born host | store host | body starts at | topic length is at |",
        "|---|---|---:|---|",
    ]
    for flags in (0, BORN_HOST_V6, STORE_HOST_V6, BORN_HOST_V6 | STORE_HOST_V6):
        size = codec.record_head(flags).size
        hosts = ("IPv6" if flags & bit else "IPv4" for bit in (BORN_HOST_V6, STORE_HOST_V6))
        lines.append(f"| {' | '.join(hosts)} | {size} | {size} + body |")
    return "\n".join(lines)


def filler_dump() -> str:
    """The blank record of a segment that had 100 bytes left."""
    return _fenced(_dump_rows(FILLER_HEAD, codec.filler(100)))


def unit_dump() -> str:
    """The example's unit, and a filler unit."""
    record = codec.decode(example_record(), 0)
    assert isinstance(record, Record)
    code = codec.unit_tags_code(record)
    assert code is not None
    unit = layouts.QUEUE_UNIT.pack(layouts.QueueUnit(record.physical_offset, record.size, code))
    lines = _dump_rows(layouts.QUEUE_UNIT, unit)
    return _fenced((*lines, "", *_dump_rows(layouts.QUEUE_UNIT, layouts.FILLER_UNIT)))


def index_dump() -> str:
    """The small index file: header, slots, entries."""
    image = index_image()
    data, geometry = image.data.tobytes(), image.geometry
    lines = _dump_rows(layouts.INDEX_HEADER, data)
    for slot in range(geometry.slot_count):
        at = geometry.slot_position(slot)
        newest = layouts.INDEX_SLOT.read(data, at).newest_entry
        lines.append(
            _dump_line(at, data[at : at + layouts.INDEX_SLOT.size], f"slot {slot} -> {newest}")
        )
    for number in range(len(INDEX_KEYS) + 1):
        at = geometry.entry_position(number)
        entry = layouts.INDEX_ENTRY.read(data, at)
        if number == 0:
            meaning = "entry 0, never used"
        else:
            key = INDEX_KEYS[number - 1][0]
            slot = entry.key_hash % geometry.slot_count
            meaning = (
                f"entry {number}: FooBar#{key}, hash {entry.key_hash} (slot {slot}), record at "
                f"{entry.physical_offset}, +{entry.time_diff_s} s, prev {entry.prev}"
            )
        lines.append(f"{at:5}  {meaning}")
    lines.append(f"{geometry.file_bytes:5}  end of the file")
    return _fenced(lines)


def index_image() -> IndexImage:
    """A small index file with four keys of topic FooBar."""
    image = IndexImage(INDEX_GEOMETRY)
    image.put(
        layouts.KeyBatch(
            np.array([layouts.key_hash("FooBar", key) for key, _, _ in INDEX_KEYS], np.int64),
            np.array([offset for _, offset, _ in INDEX_KEYS], np.int64),
            np.array([1_700_000_000_123 + after for _, _, after in INDEX_KEYS], np.int64),
        )
    )
    return image


def index_sizes() -> str:
    """Where slots and entries are in a file of default size."""
    geometry = layouts.IndexGeometry()
    return (
        f"Slot *s* is at {layouts.INDEX_HEADER.size} + {layouts.INDEX_SLOT.size} *s*, entry *n* at"
        f" {geometry.entry_position(0):,} + {layouts.INDEX_ENTRY.size} *n* in a file of RocketMQ's"
        f" sizes ({geometry.slot_count:,} slots, {geometry.index_num:,} entries,"
        f" {geometry.file_bytes:,} bytes)."
    )


def own_examples() -> str:
    """One example of each of our small files."""
    epochs = [checkpoints.EpochLine(1, 0, True, True), checkpoints.EpochLine(2, 1_325, True)]
    progress = checkpoints.WorkerCheckpoint(2, 4_096)
    ends = {Queue("FooBar", 3): 8, Queue("orders", 0): 1_200}
    tails = checkpoints.Tails(4_096, ends, last_record=3_931, store_timestamp=1_700_000_061_123)
    removed = Removed().without_topic("clicks", 3_931, 4)
    removed = removed.with_purged({Queue("orders", 0): 2_048})
    writers: dict[str, Callable[[Path], object]] = {
        "epochs": lambda root: checkpoints.save_epochs(root, epochs),
        "floor": _floor,
        "progress/index": lambda root: checkpoints.save_progress(root, "index", progress),
        "tails": lambda root: checkpoints.save_tails(root, tails),
        "removed": lambda root: checkpoints.save_removed(root, removed),
        "clean": lambda root: checkpoints.mark_clean(root, 2, 4_096),
    }
    lines = ["-- lock", *_own_text(lambda _root: None, "../lock").splitlines()]
    for name, write in writers.items():
        text = _own_text(write, name)
        if name == "floor":
            slots = [(at, text[at : at + 512].rstrip("\0")) for at in range(0, len(text), 512)]
            text = "\n".join(f"byte {at}: {' | '.join(slot.splitlines())}" for at, slot in slots)
        lines += [f"-- keelog/{name}", *text.splitlines()]
    return _fenced(lines)


def page_table(fields: Sequence[str]) -> str:
    """The numbers of a state page, at their places."""
    lines = ["| offset | number | meaning |", "|---:|---|---|"]
    lines.append(f"| 0 | magic | {state_page.PAGE_MAGIC:016x} |")
    lines += [
        f"| {_NUMBER_BYTES * (1 + i)} | {name} | {MEANINGS[name]} |"
        for i, name in enumerate(fields)
    ]
    lines.append(f"| {state_page.PAGE_BYTES - _NUMBER_BYTES} | identity | {_IDENTITY} |")
    return "\n".join(lines)


def example_record(crc: bool = False) -> bytes:
    """The message that the page follows: 165 bytes, or 185 with its checksum."""
    message = encode.NewMessage(
        "FooBar",
        b"hello",
        queue_id=3,
        born_timestamp=1_700_000_000_000,
        born_host=Host(bytes([127, 0, 0, 1]), 54_321),
    )
    pairs = {"KEYS": "k1 k2", "TAGS": "TagA", "UNIQ_KEY": "7F0000010A2B18B4AAC2000000000001"}
    tail = properties.EMPTY_CRC_PROPERTY if crc else b""
    encoded = properties.encode_properties(pairs) + tail
    buffer = bytearray(encode.pack_record(message, encoded))
    row = patch.PlainRow(0, len(buffer), message.topic, message.queue_id, message.sys_flag)
    stamp = patch.StoreStamp(1_700_000_000_123, Host(bytes([10, 0, 0, 5]), 10_911).to_bytes())
    patch.patch_plain(buffer, row, 7, 0, stamp, crc)
    return bytes(buffer)


def _fenced(lines: Iterable[str]) -> str:
    return "\n".join(("```", *lines, "```"))


def _dump_line(position: int, data: bytes, meaning: str) -> str:
    return f"{position:5}  {data.hex():<24}  {meaning}".rstrip()


def _dump_rows(layout: StructLayout[Any], data: bytes) -> list[str]:
    """One line a field: place, bytes, value."""
    lines = []
    for name, value in layout.read(data, 0)._asdict().items():
        at = layout.offsets[name]
        field = data[at : at + layout.dtype[name].itemsize]
        if isinstance(value, bytes):
            shown = ".".join(map(str, value))
        else:
            shown = f"{value:08x}" if layout.wires[name].format == ">u4" else str(value)
        lines.append(_dump_line(at, field, f"{name} = {shown}"))
    return lines


def _visible(data: bytes) -> str:
    """Text with the two separators as RocketMQ's readers know them."""
    return (
        data.decode()
        .replace(chr(properties.NAME_END), "[01]")
        .replace(chr(properties.PAIR_END), "[02]")
    )


def _own_text(write: Callable[[Path], object], name: str) -> str:
    """The content of one of our own files after `write` filled it in an empty store."""
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        checkpoints.save_lock_id(root, _EXAMPLE_ID)
        checkpoints.own_dir(root).mkdir()
        write(root)
        return (checkpoints.own_dir(root) / name).read_bytes().decode()


def _floor(root: Path) -> None:
    floor = checkpoints.Floor(root)
    for offset in (1_325, 4_096):
        floor.save(offset)
    floor.close()


PARTS: dict[str, Callable[[], str]] = {
    "record-head": SHORT_HEAD.table,
    "record-sizes": record_sizes,
    "record-dump": record_dump,
    "sealed-tail": sealed_tail,
    "filler": FILLER_HEAD.table,
    "filler-dump": filler_dump,
    "queue-unit": layouts.QUEUE_UNIT.table,
    "unit-dump": unit_dump,
    "index-header": layouts.INDEX_HEADER.table,
    "index-slot": layouts.INDEX_SLOT.table,
    "index-entry": layouts.INDEX_ENTRY.table,
    "index-sizes": index_sizes,
    "index-dump": index_dump,
    "checkpoint": layouts.CHECKPOINT.table,
    "own-examples": own_examples,
    "log-page": lambda: page_table(state_page.LogState._fields),
    "worker-page": lambda: page_table(state_page.WorkerState._fields),
}
