"""The settings of a store, with RocketMQ's names and defaults (MessageStoreConfig, BrokerConfig).

Every limit of a loop or queue that an operator may want to move has its name here.
"""

import difflib
import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

from node.runtime.addresses import AllowedPeers, check_place, parse_follow, peers_file
from protocol import names
from protocol.errors import BadRequest
from protocol.human_text import bytes_of, size_text

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    from protocol.derived.file_layouts import IndexGeometry

Kind = TypeVar("Kind", bound="DataclassInstance")
Value = TypeVar("Value", bound=int | str)

STORE = "store"
"""The table of a settings file, and the word before a name: `-X store.name=value`."""
SYNC_FLUSH = "SYNC_FLUSH"
ASYNC_FLUSH = "ASYNC_FLUSH"
SYNC_MASTER, ASYNC_MASTER = "SYNC_MASTER", "ASYNC_MASTER"
AUTO, ON, OFF = "auto", "true", "false"
SIZE_FORMS = "bytes, or a size such as 16MB or 1GiB"
SEGMENT_BYTES_MIN = 1024
"""A message must fit into a segment."""
_MIB = 1024 * 1024
_TIMER_S_MAX = 7 * 86_400 - 60
"""RocketMQ's wheel has slots for this time."""
_UNIT_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
_DELAY = re.compile(r"([0-9]+)([smhd])")


_TLS_WORDS = {
    "tls_server_mode": ("", "disabled", "permissive", "enforcing"),
    "tls_server_need_client_auth": ("none", "optional", "require"),
    "tls_protocols": ("TLSv1.2", "TLSv1.3"),
}

Size = Annotated[int, "bytes"]
"""The type of a setting that is a number of bytes: it may be given as `16MB` too."""


def setting(
    default: Value,
    meaning: str,
    least: int = 1,
    most: int | None = None,
) -> Value:
    """A field of a settings class, with its bounds where it is a number.

    `meaning` says in Markdown what it does, with the unit: for docs/settings.md, for the comments
    of `keelog config init` and for the options of `keelog serve`.
    """
    metadata = {"meaning": meaning, "least": least, "most": most}
    # A dataclass takes the place of the field by its default.
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, slots=True)
class Settings:
    """Times in ms, sizes in bytes, unless the name says otherwise."""

    mapped_file_size_commit_log: Size = setting(
        1024 * _MIB,
        "length of a log segment; its disk space is taken at once",
        least=SEGMENT_BYTES_MIN,
    )
    mapped_file_size_consume_queue: Size = setting(
        names.DEFAULT_QUEUE_FILE_BYTES, "length of a queue file (sparse)"
    )
    max_hash_slot_num: int = setting(
        names.DEFAULT_SLOT_COUNT, "hash slots of an index file (sparse)"
    )
    max_index_num: int = setting(
        names.DEFAULT_INDEX_NUM, "entries of an index file, one is never used"
    )
    message_index_enable: bool = setting(True, "whether there is an index of keys at all")
    index_tags_enable: bool = setting(
        True, "index the tag of a message too, as RocketMQ 5.4 and later do"
    )
    enable_multi_dispatch: bool = setting(
        False,
        "dispatch a broker's records to light queues (`%LMQ%`), too; a store that has "
        "such queues always does",
    )
    flush_disk_type: str = setting(
        ASYNC_FLUSH, "`ASYNC_FLUSH`, or `SYNC_FLUSH`: every answer waits for the disk"
    )
    flush_interval_commit_log: int = setting(500, "ASYNC_FLUSH: ms between two flushes")
    flush_commit_log_least_pages: int = setting(
        4, "ASYNC_FLUSH: pages of 4 KiB that a flush must be worth", least=0
    )
    flush_commit_log_thorough_interval: int = setting(
        10_000, "ASYNC_FLUSH: after so many ms even one byte is flushed"
    )
    flush_commit_log_timed: bool = setting(
        True, "ASYNC_FLUSH: sleep it out; false: a commit or wake-up ends it early"
    )
    wake_flush_when_put_message: bool = setting(
        False, "ASYNC_FLUSH, not timed: each append is such a wake-up"
    )
    sync_flush_timeout: int = setting(
        5_000, "ms that an answer waits for the disk; then `FLUSH_DISK_TIMEOUT`"
    )
    broker_role: str = setting(
        ASYNC_MASTER,
        "`ASYNC_MASTER`, or `SYNC_MASTER`: every answer waits for `in_sync_replicas` "
        "([replication](replication.md#being-followed))",
    )
    in_sync_replicas: int = setting(
        1, "SYNC_MASTER: copies that a message must have, this node's among them", most=64
    )
    slave_timeout: int = setting(
        3_000, "ms that an answer waits for followers; then `FLUSH_SLAVE_TIMEOUT`"
    )
    ha_send_heartbeat_interval: int = setting(
        5_000, "ms without a frame after which a follower gets a heart-beat"
    )
    ha_housekeeping_interval: int = setting(
        20_000, "ms without a report after which a follower's connection is closed"
    )
    ha_max_gap_not_in_sync: Size = setting(
        256 * _MIB, "bytes of lag from which a follower is not in sync"
    )
    ha_allowed_peers: str = setting(
        "",
        "where followers may come from, as `192.0.2.7,10.1.0.0/16`, or `file:/PATH` with such "
        "lines, whose changes count while the node runs; empty: anywhere",
    )
    follow: str = setting(
        "",
        "the master whose log this node copies ([replication](replication.md)): `HOST:PORT` of its "
        "replication, or `namesrv:HOST:PORT;HOST:PORT/BROKERNAME`; empty: the node is a master",
    )
    follow_remoting: str = setting(
        "",
        "where that master takes requests, `HOST:PORT`; empty: as name servers say, "
        "else the port below that of `follow`",
    )
    controller_id: int = setting(
        0,
        "the id that a controller gave this node, which `keelog serve --controller` sets by itself "
        "([replication](replication.md#elected-masters)); 0: no controller",
        least=0,
    )
    controller_heart_beat_timeout: int = setting(
        10_000, "ms without a heart-beat after which a controller takes this node for dead"
    )
    ha_max_time_slave_not_catchup: int = setting(
        15_000,
        "ms that a follower may be late and count as in sync for the elected master",
    )
    slave_read_enable: bool = setting(
        False,
        "whether a node that follows serves pulls of RocketMQ's clients; a master "
        "sends [slow consumers](replication.md#slow-consumers) there",
    )
    transient_store_pool_enable: bool = setting(
        False,
        "ASYNC_FLUSH: appends go to memory first, and are [lost with the "
        "process](operations.md#flush-modes) until committed",
    )
    transient_store_pool_size: int = setting(
        5, "its buffers, of 8 MiB or one segment, whichever is less"
    )
    fast_fail_if_no_buffer_in_store_pool: bool = setting(
        False, "pool full: SYSTEM_BUSY; false: wait for the disk"
    )
    commit_interval_commit_log: int = setting(
        200, "pool: ms between two commits, the writes into the segment"
    )
    commit_commit_log_least_pages: int = setting(
        4, "pool: pages of 4 KiB that a commit must be worth", least=0
    )
    commit_commit_log_thorough_interval: int = setting(
        200, "pool: after so many ms even one byte is committed"
    )
    wake_commit_when_put_message: bool = setting(True, "pool: each append ends the interval early")
    flush_interval_consume_queue: int = setting(
        1_000, "ms between two syncs of queue files, and of index files"
    )
    flush_consume_queue_least_pages: int = setting(
        2, "pages of 4 KiB of new units that a sync is worth", least=0
    )
    flush_consume_queue_thorough_interval: int = setting(
        60_000, "after so many ms even one unit is synced"
    )
    file_reserved_time: int = setting(72, "hours that a segment is kept after it was last written")
    delete_when: str = setting(
        "04", "hours of the local day in which older segments go: `04`, or `04;16`"
    )
    disk_max_used_space_ratio: int = setting(
        75, "% of the disk; above it they go at any hour", most=100
    )
    disk_space_clean_forcibly_ratio: int = setting(
        85,
        "% of the disk; above it segments go before their time, and [abandoned staged "
        "batches](operations.md#what-goes-when-the-disk-fills) before them",
        most=100,
    )
    disk_space_warning_level_ratio: int = setting(
        90, "% of the disk; above it appends are refused, `disk_full`", most=100
    )
    clean_file_forcibly_enable: bool = setting(
        True, "whether segments may go before their time at all"
    )
    file_forced_reserved_minutes: int = setting(
        60,
        "minutes after its last write that a segment stays on a full disk; 0: none, "
        "[as in a broker](operations.md#old-segments)",
        least=0,
    )
    file_forced_warning_seconds: int = setting(
        60,
        "seconds after a start in which no segment goes early: the log warns",
        least=0,
    )
    retention_bytes: Size = setting(
        0,
        "bytes of segments, above which the oldest go; 0: no limit",
        least=0,
    )
    clean_resource_interval: int = setting(10_000, "ms between two rounds of deleting")
    delete_commit_log_files_interval: int = setting(100, "ms between two deleted segments")
    delete_file_batch_max: int = setting(10, "segments that one round deletes at most")
    max_message_size: Size = setting(names.DEFAULT_MAX_MESSAGE_BYTES, "largest body")
    enabled_append_prop_crc: bool = setting(
        True,
        "seal each record with a checksum over all of it "
        "([why](decisions/0002-whole-record-checksum.md)); off in RocketMQ",
    )
    auto_create_topic_enable: bool = setting(
        True, "make a topic when the first message for it comes"
    )
    default_topic_queue_nums: int = setting(8, "queues of a topic made so")
    auto_create_subscription_group: bool = setting(
        True, "make a consumer group when a client of RocketMQ's names it"
    )
    skip_damaged_message: bool = setting(
        True,
        "whether RocketMQ's clients get the messages after a "
        "[damaged one](operations.md#damage); false: their pulls at it are refused, and the "
        "group stays there",
    )
    enable_property_filter: bool = setting(
        True, "take filters in SQL92 of RocketMQ's clients; RocketMQ's default is false"
    )
    store_reply_message_enable: bool = setting(
        True, "store replies to requests of RocketMQ's clients, too"
    )
    reject_transaction_message: bool = setting(
        False, "refuse messages of transactions, which only RocketMQ's clients send"
    )
    transaction_time_out: int = setting(
        6_000, "ms after its birth in which nobody asks for an open transaction", least=0
    )
    transaction_check_interval: int = setting(
        30_000, "ms between two rounds that ask producers for open transactions"
    )
    transaction_check_max: int = setting(15, "questions before a transaction is given up")
    transaction_op_batch_interval: int = setting(
        3_000, "ms for which ends of transactions are gathered"
    )
    transaction_op_msg_max_size: Size = setting(
        4_096, "bytes of gathered ends that are written at once"
    )
    message_delay_level: str = setting(
        "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h",
        "delays of the levels of DELAY",
    )
    timer_max_delay_sec: int = setting(
        259_200, "seconds that a timer message may wait at most", most=_TIMER_S_MAX
    )
    timer_roll_window_slot: int = setting(
        172_800,
        "seconds after which a waiting timer message is stored anew, so that retention spares it",
        least=2,
        most=_TIMER_S_MAX,
    )
    recall_message_enable: bool = setting(
        False, "let RocketMQ's clients take timer messages back (code 370)"
    )
    max_transfer_bytes_on_message_in_memory: Size = setting(
        262_144, "bytes of one pull, recent messages"
    )
    max_transfer_count_on_message_in_memory: int = setting(
        32, "messages of one pull, recent messages"
    )
    max_transfer_bytes_on_message_in_disk: Size = setting(65_536, "bytes of one pull, old messages")
    max_transfer_count_on_message_in_disk: int = setting(8, "messages of one pull, old messages")
    access_message_in_memory_max_ratio: int = setting(
        40, "% of memory; messages further back in the log are old", least=0
    )
    max_filter_message_size: Size = setting(
        16_000, "bytes of queue units that a pull with tags looks through"
    )
    travel_cq_file_num_when_get_message: int = setting(1, "queue files that one pull looks into")
    send_thread_pool_queue_capacity: int = setting(
        10_000, "requests that may wait for the disk; then SYSTEM_BUSY"
    )
    waiting_bytes_max: Size = setting(
        64 * _MIB, "bytes of records that may wait for the disk; then SYSTEM_BUSY"
    )
    idempotent_window: int = setting(
        0,
        "seconds in which a unique key that is sent again may be [stored once]"
        "(client.md#stored-once), where a sender asks for that; 0: nobody may ask",
        least=0,
    )
    idempotent_keys_max: int = setting(
        1_000_000, "the newest unique keys that are looked for, 35 bytes each", least=32_768
    )
    idempotent_remoting: bool = setting(
        False, "whether RocketMQ's clients ask for it with every send"
    )
    long_polling_ms_max: int = setting(30_000, "longest wait of a pull that finds nothing")
    tls_config_file: str = setting(
        "",
        "RocketMQ's `tls.properties`, which is [read as it is](tls.md#rocketmqs-file); its lines "
        "count before the settings below, and paths are whole in both; empty: none is read",
    )
    tls_server_mode: str = setting(
        "",
        "what the node's ports take: `disabled` no TLS, `enforcing` TLS alone, `permissive` both "
        "([modes](tls.md#modes)); empty: `enforcing` with a certificate, else `disabled`",
    )
    tls_server_key_path: str = setting(
        "", "the node's key, PEM; for its owner alone (0600), or root's and read by a group (0640)"
    )
    tls_server_key_password_file: str = setting(
        "", "a file with the password of the key, with the same mode; empty: the key has none"
    )
    tls_server_cert_path: str = setting("", "the node's certificate and those above it, PEM")
    tls_server_trust_cert_path: str = setting(
        "", "PEM of those who sign certificates of clients and replicas"
    )
    tls_server_need_client_auth: str = setting(
        "none",
        "whether RocketMQ's clients come with a certificate: `none`, `optional`, `require`; one "
        "that comes is always verified",
    )
    tls_enable: bool = setting(
        False,
        "whether the node uses TLS where it connects: to its master, to name servers and to "
        "controllers",
    )
    tls_client_key_path: str = setting(
        "", "the key with which the node connects, as `tls_server_key_path`; empty: none"
    )
    tls_client_key_password_file: str = setting("", "a file with its password")
    tls_client_cert_path: str = setting("", "the certificate with which the node connects, PEM")
    tls_client_trust_cert_path: str = setting(
        "", "PEM of those who sign certificates of servers; empty: those that the system trusts"
    )
    tls_client_auth_server: bool = setting(
        True, "whether the node verifies where it has connected; RocketMQ's default is false"
    )
    tls_client_check_host: bool = setting(
        True,
        "whether the certificate must name the host or address that was connected to; RocketMQ "
        "never looks",
    )
    tls_protocols: str = setting("TLSv1.2,TLSv1.3", "the versions of TLS; older ones are refused")
    http_token_file: str = setting(
        "",
        "a file with the token by which programs [see metrics and health](security.md#health-and-"
        "metrics), `Authorization: Bearer TOKEN`; a whole path, for its owner alone (0600), or "
        "root's and read by a group (0640); empty: none",
    )
    staging_retention_hours: int = setting(24, "hours that unpublished batches are kept")
    staging_abandoned_minutes: int = setting(
        30, "minutes without a write after which a staged batch may go for room"
    )
    staging_bytes_max: Size = setting(
        0,
        "bytes of all staged batches; then NO_PERMISSION; 0: [what the "
        "disk allows](operations.md#what-goes-when-the-disk-fills)",
        least=0,
    )

    authentication_enabled: str = setting(
        AUTO,
        "whether clients must [log in](security.md#logins): `true`, `false`, or `auto`: as soon as "
        "there is a user, or other hosts reach `--bind` or `--remoting`",
    )
    authorization_enabled: str = setting(
        AUTO,
        "whether [access lists](security.md#lists) count for those who log in: `true` only with "
        "`authentication_enabled=true`; `auto`: yes",
    )
    auth_failures_max: int = setting(
        10,
        "logins that an address may fail in a minute; further refusals come late, and beyond five "
        "times as many the connection ends",
        most=1_000_000,
    )
    auth_delay_ms: int = setting(100, "ms that such a refusal comes late", least=0, most=10_000)
    init_authentication_user_file: str = setting(
        "",
        'a file of mode 0600 with `{"username": …, "password": …}`: a Super user who is made at '
        "the start, if there is none of that name ([more](security.md#users-that-a-start-makes))",
    )
    inner_client_authentication_credentials_file: str = setting(
        "",
        'such a file with `{"accessKey": …, "secretKey": …}`: made in the same way, and with it '
        "the node [signs its own requests](security.md#the-nodes-own-requests) to other nodes",
    )
    auth_follow_master: bool = setting(
        False,
        "whether a replica has [the users of its master](security.md#users-of-a-master), instead "
        "of users of its own",
    )

    def __post_init__(self) -> None:
        if self.flush_disk_type not in (SYNC_FLUSH, ASYNC_FLUSH):
            raise BadRequest(
                f"flush_disk_type is {self.flush_disk_type!r}", f"use {SYNC_FLUSH} or {ASYNC_FLUSH}"
            )
        if self.broker_role not in (ASYNC_MASTER, SYNC_MASTER):
            raise BadRequest(
                f"broker_role is {self.broker_role!r}", f"use {ASYNC_MASTER} or {SYNC_MASTER}"
            )
        self._check_logins()
        self._check_own_users()
        if self.idempotent_window and self.is_pool_enabled:
            raise BadRequest(
                "idempotent_window does not go with transient_store_pool_enable",
                "set one of them",
            )
        check_bounds(self)
        if peers_file(self.ha_allowed_peers) is None:
            AllowedPeers(self.ha_allowed_peers)
        _check_tls(self)
        if self.follow:
            parse_follow(self.follow)
        if self.follow_remoting:
            check_place("follow_remoting", self.follow_remoting)
        self.delete_hours  # noqa: B018  (a bad text is refused at the start)
        self.delay_levels_ms  # noqa: B018  (a bad text is refused at the start)

    def _check_logins(self) -> None:
        """Raises BadRequest. Without logins an access list would count for whom a request names,
        and anybody can name anybody."""
        for name in ("authentication_enabled", "authorization_enabled"):
            value = getattr(self, name)
            if value not in (AUTO, ON, OFF):
                raise BadRequest(f"{name} is {value!r}", f"use {AUTO}, {ON} or {OFF}")
        if self.authorization_enabled == ON and self.authentication_enabled != ON:
            raise BadRequest(
                f"authorization_enabled is true, and authentication_enabled is "
                f"{self.authentication_enabled}",
                "set authentication_enabled=true too, or leave both at auto",
            )

    def _check_own_users(self) -> None:
        """Raises BadRequest."""
        names = "init_authentication_user_file", "inner_client_authentication_credentials_file"
        for name in names:
            _check_whole_path(name, getattr(self, name))
        if self.auth_follow_master and not self.inner_client_authentication_credentials_file:
            raise BadRequest(
                "auth_follow_master is true, and a master gives its users to nobody who does not"
                " log in",
                "name inner_client_authentication_credentials_file (docs/security.md)",
            )

    @property
    def queue_file_bytes(self) -> int:
        """Size of a ConsumeQueue file: rounded up to whole units, as the broker's getter does."""
        return -(-self.mapped_file_size_consume_queue // names.UNIT_BYTES) * names.UNIT_BYTES

    @property
    def index_geometry(self) -> "IndexGeometry":
        from protocol.derived.file_layouts import IndexGeometry

        return IndexGeometry(self.max_hash_slot_num, self.max_index_num)

    @property
    def is_sync_flush(self) -> bool:
        """Whether an answer waits for the disk."""
        return self.flush_disk_type == SYNC_FLUSH

    @property
    def waits_for_followers(self) -> bool:
        """Whether an answer waits for followers: with one copy a broker does not wait either."""
        return self.broker_role == SYNC_MASTER and self.in_sync_replicas > 1

    @property
    def shows_replicated(self) -> bool:
        """Whether readers see a message once followers have it, and not before: where another
        master may be elected, which lacks what they do not have."""
        return self.controller_id > 0 and self.waits_for_followers

    @property
    def shows_late(self) -> bool:
        """Whether an append has to wait for more before readers see it."""
        return self.is_sync_flush or self.shows_replicated

    @property
    def followers_needed(self) -> int:
        """How many followers must acknowledge a message that is to be replicated: at least one."""
        return max(self.in_sync_replicas, 2) - 1

    @property
    def is_pool_enabled(self) -> bool:
        """Whether appends go through the pool: with SYNC_FLUSH it would only delay the answers."""
        return self.transient_store_pool_enable and not self.is_sync_flush

    @property
    def kept(self) -> str:
        """How long messages are kept, in words: `keeps 72 h`, `keeps 72 h, at most 10 GiB`."""
        text = f"keeps {self.file_reserved_time} h"
        return (
            f"{text}, at most {size_text(self.retention_bytes)}" if self.retention_bytes else text
        )

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


def _check_tls(settings: Settings) -> None:
    """Raises BadRequest for a word that is none of those allowed, and for a path that depends on
    where a process runs."""
    for name, words in _TLS_WORDS.items():
        value = getattr(settings, name)
        parts = value.split(",") if name == "tls_protocols" else [value]
        if not {one.strip() for one in parts} <= set(words):
            raise BadRequest(f"{name} is {value[:80]!a}", f"use {', '.join(filter(None, words))}")
    for one in fields(settings):
        value = getattr(settings, one.name)
        if one.name.startswith(("tls_", "http_")) and one.name.endswith(("_path", "_file")):
            _check_whole_path(one.name, value)


def _check_whole_path(name: str, path: str) -> None:
    if path and not path.startswith("/"):
        raise BadRequest(f"{name} is {path[:80]!a}", "write the whole path, from / on")


def check_bounds(settings: "DataclassInstance") -> None:
    """Raises BadRequest for a number outside the bounds of its setting."""
    for one in fields(settings):
        value = getattr(settings, one.name)
        least, most = one.metadata["least"], one.metadata["most"]
        if not isinstance(value, int) or isinstance(value, bool):
            continue
        if most is not None and not least <= value <= most:
            raise BadRequest(f"{one.name} is {value}, outside [{least}, {most}]")
        if value < least:
            hint = "a positive number" if least == 1 else f"at least {least}"
            raise BadRequest(f"{one.name} is {value}", f"use {hint}")


def load_settings(pairs: Iterable[str], base: Settings | None = None) -> Settings:
    """Applies `name=value` texts (`store.` in front is allowed) to `base` or the defaults.

    Raises BadRequest for an unknown name, with the nearest one, or a value of the wrong kind.
    """
    return changed(base or Settings(), pairs, STORE)


def changed(settings: Kind, pairs: Iterable[str], table: str) -> Kind:
    """Settings of any kind with the `name=value` texts applied; the table may stand in front.

    Raises BadRequest as `load_settings`.
    """
    known = {one.name: one for one in fields(settings)}
    changes: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        name = snake_case(name.strip().removeprefix(f"{table}."))
        if not equals:
            raise BadRequest(f"{pair[:80]!a} sets nothing", "write name=value")
        if name not in known:
            raise unknown_setting(name, type(settings))
        kind = type(getattr(settings, name))
        changes[name] = _value(name, kind, text.strip(), known[name].type == Size)
    return replace(settings, **changes)


def unknown_setting(name: str, kind: "type[DataclassInstance]" = Settings) -> BadRequest:
    """The error for a name that is no setting's, with the nearest one that is."""
    near = difflib.get_close_matches(name, [one.name for one in fields(kind)], 1)
    hint = f"did you mean {near[0]}?" if near else "see them all with: keelog config init"
    return BadRequest(f"there is no setting {name[:80]!a}", hint)


def snake_case(name: str) -> str:
    """RocketMQ's camelCase is taken too, enabledAppendPropCRC as well."""
    return re.sub(r"(?<=[a-z0-9])([A-Z])", r"_\1", name).lower()


def _value(name: str, kind: type, text: str, is_size: bool) -> int | bool | str:
    if kind is bool:
        if text.lower() not in ("true", "false"):
            raise BadRequest(f"{name} is {text!r}", "use true or false")
        return text.lower() == "true"
    if kind is int:
        try:
            return int(text.replace("_", ""))
        except ValueError:
            if is_size:
                return _size(name, text)
            raise BadRequest(f"{name} is {text!r}", "use a whole number") from None
    return text


def _size(name: str, text: str) -> int:
    try:
        return bytes_of(text)
    except BadRequest:
        raise BadRequest(f"{name} is {text!r}", f"use {SIZE_FORMS}") from None
