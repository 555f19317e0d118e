"""The settings of a store, with RocketMQ's names and defaults (MessageStoreConfig, BrokerConfig).

Every limit of a loop or queue that an operator may want to move has its name here.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any, TypeVar

from protocol.errors import BadRequest
from protocol.sizes import (
    DEFAULT_INDEX_NUM,
    DEFAULT_MAX_MESSAGE_BYTES,
    DEFAULT_QUEUE_FILE_BYTES,
    DEFAULT_SLOT_COUNT,
    UNIT_BYTES,
)

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from protocol.derived.index_entry import IndexGeometry

Kind = TypeVar("Kind", bound="DataclassInstance")

STORE = "store"
"""The table of a settings file, and the word before a name: `-X store.name=value`."""
SYNC_FLUSH = "SYNC_FLUSH"
ASYNC_FLUSH = "ASYNC_FLUSH"
_RATIOS = (
    "disk_max_used_space_ratio",
    "disk_space_clean_forcibly_ratio",
    "disk_space_warning_level_ratio",
)
_MAY_BE_ZERO = ("file_forced_reserved_minutes", "staging_bytes_max")
SEGMENT_BYTES_MIN = 1024
_MIB = 1024 * 1024
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DELAY = re.compile(r"([0-9]+)([smhd])")


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in ms, sizes in bytes, unless the name says otherwise."""

    mapped_file_size_commit_log: int = 1024 * _MIB
    mapped_file_size_consume_queue: int = DEFAULT_QUEUE_FILE_BYTES
    max_hash_slot_num: int = DEFAULT_SLOT_COUNT
    max_index_num: int = DEFAULT_INDEX_NUM
    message_index_enable: bool = True
    index_tags_enable: bool = True
    """Index TAGS too, as 5.4 and later do."""
    flush_disk_type: str = ASYNC_FLUSH
    flush_interval_commit_log: int = 500
    flush_commit_log_least_pages: int = 4
    flush_commit_log_thorough_interval: int = 10_000
    flush_commit_log_timed: bool = True
    """False: a commit, or an append by `wake_flush_when_put_message`, ends the interval early."""
    wake_flush_when_put_message: bool = False
    sync_flush_timeout: int = 5_000
    transient_store_pool_enable: bool = False
    """Counts in ASYNC_FLUSH only: `is_pool_enabled`."""
    transient_store_pool_size: int = 5
    """Buffers of 8 MiB, or of a segment where that is less; RocketMQ's have a segment's length."""
    fast_fail_if_no_buffer_in_store_pool: bool = False
    commit_interval_commit_log: int = 200
    commit_commit_log_least_pages: int = 4
    commit_commit_log_thorough_interval: int = 200
    wake_commit_when_put_message: bool = True
    flush_interval_consume_queue: int = 1_000
    flush_consume_queue_least_pages: int = 2
    flush_consume_queue_thorough_interval: int = 60_000
    file_reserved_time: int = 72
    """Hours that a segment is kept after it was last written."""
    delete_when: str = "04"
    """Hours of the local day in which old segments go, whatever the disk: `04`, `04;16`."""
    disk_max_used_space_ratio: int = 75
    """Percent. Above it old segments go at any hour."""
    disk_space_clean_forcibly_ratio: int = 85
    """Percent. Above it segments go before their time, the oldest first, and abandoned staged
    batches before them."""
    disk_space_warning_level_ratio: int = 90
    """Percent. Above it appends are refused, reason disk_full."""
    clean_file_forcibly_enable: bool = True
    file_forced_reserved_minutes: int = 60
    """What was written within so many minutes stays on a disk above the forced ratio too. 0: as in
    a broker, nothing does."""
    clean_resource_interval: int = 10_000
    delete_commit_log_files_interval: int = 100
    delete_file_batch_max: int = 10
    max_message_size: int = DEFAULT_MAX_MESSAGE_BYTES
    enabled_append_prop_crc: bool = True
    """RocketMQ's default is false; ours is true (docs/decisions)."""
    auto_create_topic_enable: bool = True
    default_topic_queue_nums: int = 8
    message_delay_level: str = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
    max_transfer_bytes_on_message_in_memory: int = 262_144
    max_transfer_count_on_message_in_memory: int = 32
    max_transfer_bytes_on_message_in_disk: int = 65_536
    max_transfer_count_on_message_in_disk: int = 8
    access_message_in_memory_max_ratio: int = 40
    max_filter_message_size: int = 16_000
    travel_cq_file_num_when_get_message: int = 1
    send_thread_pool_queue_capacity: int = 10_000
    waiting_bytes_max: int = 64 * _MIB
    long_polling_ms_max: int = 30_000
    staging_retention_hours: int = 24
    """Hours that staged batches are kept which nobody publishes."""
    staging_abandoned_minutes: int = 30
    """A staged batch that nobody has touched for so long goes when the disk needs room."""
    staging_bytes_max: int = 0
    """Records that are staged and not published yet, of all queries together. 0: what the disk
    allows, which is the bound in any case."""

    def __post_init__(self) -> None:
        if self.flush_disk_type not in (SYNC_FLUSH, ASYNC_FLUSH):
            raise BadRequest(
                f"flush_disk_type is {self.flush_disk_type!r}", f"use {SYNC_FLUSH} or {ASYNC_FLUSH}"
            )
        for field in fields(self):
            value = getattr(self, field.name)
            if not isinstance(value, int) or isinstance(value, bool):
                continue
            may_be_zero = field.name.endswith("_least_pages") or field.name in _MAY_BE_ZERO
            if value < 0 or (value == 0 and not may_be_zero):
                raise BadRequest(f"{field.name} is {value}", "use a positive number")
        if self.mapped_file_size_commit_log < SEGMENT_BYTES_MIN:
            raise BadRequest(
                f"mapped_file_size_commit_log is {self.mapped_file_size_commit_log}",
                f"use at least {SEGMENT_BYTES_MIN}: a message must fit into a segment",
            )
        for name in _RATIOS:
            if getattr(self, name) > 100:
                raise BadRequest(f"{name} is {getattr(self, name)}", "use percent, 100 at most")
        self.delete_hours  # noqa: B018  (a bad text is refused at the start)
        self.delay_levels_ms  # noqa: B018  (a bad text is refused at the start)

    @property
    def queue_file_bytes(self) -> int:
        """Size of a ConsumeQueue file: rounded up to whole units, as the broker's getter does."""
        return -(-self.mapped_file_size_consume_queue // UNIT_BYTES) * UNIT_BYTES

    @property
    def index_geometry(self) -> "IndexGeometry":
        """Slots and entries of an index file."""
        from protocol.derived.index_entry import IndexGeometry

        return IndexGeometry(self.max_hash_slot_num, self.max_index_num)

    @property
    def is_sync_flush(self) -> bool:
        """Whether an answer waits for the disk."""
        return self.flush_disk_type == SYNC_FLUSH

    @property
    def is_pool_enabled(self) -> bool:
        """Whether appends go through the pool: with SYNC_FLUSH it would only delay the answers."""
        return self.transient_store_pool_enable and not self.is_sync_flush

    @property
    def delete_hours(self) -> frozenset[int]:
        """The hours of the local day in which old segments go."""
        words = self.delete_when.split(";")
        hours = {int(word) for word in words if word.strip().isdecimal()}
        if len(hours) != len(words) or max(hours) > 23:
            raise BadRequest(f"delete_when is {self.delete_when!r}", "write hours as 04 or 04;16")
        return frozenset(hours)

    @property
    def delay_levels_ms(self) -> tuple[int, ...]:
        """The delay of each level; level 1 is the first."""
        levels = []
        for word in self.message_delay_level.split():
            match = _DELAY.fullmatch(word)
            if match is None:
                raise BadRequest(f"message_delay_level has {word!r}", "write levels as 1s 5m 2h")
            levels.append(int(match[1]) * _UNIT_S[match[2]] * 1000)
        return tuple(levels)


def load_settings(pairs: Iterable[str], base: Settings | None = None) -> Settings:
    """Applies `name=value` texts (`store.` in front is allowed) to `base` or the defaults.

    Raises BadRequest for an unknown name, with the nearest one, or a value of the wrong kind.
    """
    return changed(base or Settings(), pairs, STORE)


def changed(settings: Kind, pairs: Iterable[str], table: str) -> Kind:
    """Settings of any kind with the `name=value` texts applied; the table may stand in front.

    Raises BadRequest as `load_settings`.
    """
    kinds = {field.name: type(getattr(settings, field.name)) for field in fields(settings)}
    changes: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = snake_case(name.strip().removeprefix(f"{table}."))
        if not equals:
            raise BadRequest(f"{pair[:80]!a} sets nothing", "write name=value")
        if name not in kinds:
            raise unknown_setting(name, type(settings))
        changes[name] = _value(name, kinds[name], text.strip())
    return replace(settings, **changes)


def unknown_setting(name: str, kind: "type[DataclassInstance]" = Settings) -> BadRequest:
    """The error for a name that is no setting's, with the nearest one that is."""
    near = difflib.get_close_matches(name, [field.name for field in fields(kind)], 1)
    hint = f"did you mean {near[0]}?" if near else "see them all with: keelog config init"
    return BadRequest(f"there is no setting {name[:80]!a}", hint)


def snake_case(name: str) -> str:
    """RocketMQ's camelCase is taken too, enabledAppendPropCRC as well."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def _value(name: str, kind: type, text: str) -> int | bool | str:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise BadRequest(f"{name} is {text!r}", "use true or false")
        return text.lower() == "true"
    if kind is int:
        try:
            return int(text.replace("_", ""))
        except ValueError:
            raise BadRequest(f"{name} is {text!r}", "use a whole number") from None
    return text
