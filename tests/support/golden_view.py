"""Golden stores opened as they must be: with the sizes that no file tells, and no others."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from node.runtime.settings import Settings, load_settings
from node.store.opening import StoppedStore, open_store
from protocol.record.codec import Record
from tests.support.golden import Facts

WITHOUT_DERIVED_FILES = ("cq-missing", "trimmed-cq-missing")
"""Of these nothing tells how long queue and index files were: the broker's settings did."""

_NAMES = {
    "mapped_file_size_consume_queue": "mappedFileSizeConsumeQueue",
    "max_hash_slot_num": "maxHashSlotNum",
    "max_index_num": "maxIndexNum",
}


def size_pairs(name: str, known: Facts) -> list[str]:
    """The -X texts that this store needs: none where its files tell their sizes."""
    if name not in WITHOUT_DERIVED_FILES:
        return []
    config = known.state["config"]
    return [f"store.{ours}={config[theirs]}" for ours, theirs in _NAMES.items()]


def size_settings(name: str, known: Facts) -> Settings:
    """The same as settings."""
    return load_settings(size_pairs(name, known))


@contextmanager
def golden_view(root: Path, known: Facts) -> Iterator[StoppedStore]:
    """The store at `root`, open."""
    with open_store(root, size_settings(root.name, known)) as store:
        yield store


def message_fact(record: Record) -> dict[str, Any]:
    """A record in the words of `messages.jsonl`, those fields that are plain numbers and texts."""
    head = record.head
    return {
        "physicalOffset": head.physical_offset,
        "storeSize": head.total_size,
        "topic": record.topic,
        "queueId": head.queue_id,
        "queueOffset": head.queue_offset,
        "msgId": record.message_id,
        "bornTimestamp": head.born_timestamp,
        "storeTimestamp": head.store_timestamp,
        "bornHost": f"{head.born_ip.hex()}:{head.born_port}",
        "storeHost": f"{head.store_ip.hex()}:{head.store_port}",
        "sysFlag": head.sys_flag,
        "flag": head.flag,
        "bodyCRC": head.body_crc,
        "reconsumeTimes": head.reconsume_times,
        "preparedTransactionOffset": head.prepared_transaction_offset,
        "bodyLength": head.body_length,
    }
