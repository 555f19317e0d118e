"""A store that a writer without sockets makes and leaves: killed, stopped, or robbed of power."""

from collections.abc import Sequence
from pathlib import Path

from node.runtime.settings import Settings
from node.store.identity.places import create_store
from node.writer.appender import AppendRequest
from node.writer.recovery import Recovery, examine
from node.writer.store import WriterStore, open_writer_store
from protocol.ids import Host
from protocol.names import COMMIT_LOG_DIR, offset_file_name
from protocol.record.codec import Record, decode
from protocol.record.encode import NewMessage, encode_batch

SEGMENT_BYTES = 64 * 1024
FIRST_TIME = 1_700_000_000_000
_HOST = Host(b"\x7f\x00\x00\x01", 10911)


def settings(crc: bool = True) -> Settings:
    """Small segments."""
    return Settings(mapped_file_size_commit_log=SEGMENT_BYTES, enabled_append_prop_crc=crc)


class Owner:
    """One life of a writer: it opens (and so recovers) the store, appends, flushes, ends."""

    def __init__(self, root: Path, crc: bool = True) -> None:
        self.root = root
        self.crc = crc
        create_store(root)
        self.store: WriterStore = open_writer_store(root, settings(crc), _HOST, alone=True)
        self.now_ms = FIRST_TIME

    def append(self, messages: Sequence[NewMessage]) -> list[int]:
        """One request for each message; answers their log offsets."""
        requests = [
            AppendRequest(encode_batch([message], self.crc).records, 1) for message in messages
        ]
        self.store.appender.append(requests, self.now_ms)
        for request in requests:
            assert request.error is None, request.error
        return [request.physical_offset for request in requests]

    def flush(self) -> None:
        """Everything up to now is durable, and the floor says so."""
        job = self.store.log.flush_job()
        job.run()
        self.store.after_flush(job.target)()
        self.store.flushed_to(job.target)

    def stop(self) -> None:
        """A stop in order."""
        self.flush()
        self.store.close_cleanly(workers_done=True)

    def kill(self) -> None:
        """As SIGKILL: what the files hold stays, and nothing is tidied up."""
        self.store.log.close(unlink_next=False)
        self.store.floor.close()
        self.store.retention.close()
        self.store.checkpoint.close()
        self.store.page.close()
        self.store.lock.release()


def some(count: int, body_bytes: int = 300, first: int = 0) -> list[NewMessage]:
    """Messages with tags, keys and a property, in four queues."""
    return [
        NewMessage(
            "orders",
            bytes([number % 251 + 1]) * body_bytes,
            number % 4,
            tags="paid",
            keys=(f"k{number}",),
            properties={"tenant": "north"},
        )
        for number in range(first, first + count)
    ]


def record_at(root: Path, offset: int) -> Record:
    """The record that starts at a log offset."""
    base = offset - offset % SEGMENT_BYTES
    data = (root / COMMIT_LOG_DIR / offset_file_name(base)).read_bytes()
    found = decode(data, offset - base, offset)
    assert isinstance(found, Record), found
    return found


def overwrite(root: Path, offset: int, data: bytes) -> None:
    """Changes bytes of the log behind everybody's back."""
    base = offset - offset % SEGMENT_BYTES
    with (root / COMMIT_LOG_DIR / offset_file_name(base)).open("r+b") as file:
        file.seek(offset - base)
        file.write(data)


def recovered(root: Path, crc: bool = True) -> Recovery:
    """What a start would find."""
    return examine(root, settings(crc))
