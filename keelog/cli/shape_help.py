"""The shapes of every command's JSON, for `--format help`: field by field, and the kind of each.

Adding a field is allowed, renaming or removing one is not.
"""

import json

from keelog.cli import shapes
from keelog.cli.settings import SettingProblem
from keelog.client.groups import GroupMemberInfo, GroupQueue
from keelog.client.results import TopicCreated, TopicDeleted, TopicInfo, TopicPurged
from keelog.replication.roles import Promotion, Rewind
from keelog.sqlite_export import SqliteResult
from node.store.identity.roles import StoreRole
from node.supervisor.status import HealthStatus, Status
from protocol.errors import BadRequest
from protocol.status import ProcessStatus, shape_of
from workers.rebuild import RebuildReport

_TRUTH = "true or false"
_FIGURES = "text, and its figures"
_KEY: shapes.Shape = {"public_key": "text: 40 characters", "file": "text: where it is"}
FINDING: shapes.Shape = {
    "severity": "error or warning",
    "kind": "torn_tail, bad_magic, bad_size, bad_crc, wrong_place, gap, …",
    "file": "text",
    "offset": "integer, or null",
    "topic": "text, or null",
    "queue_id": "integer, or null",
    "queue_offset": "integer, or null",
    "detail": "text",
    "count": "integer: of units or entries in a row, of which this is the first",
    "try": "text: the command that fixes it",
}
VERIFY: shapes.Shape = {
    "ok": _TRUTH,
    "read": dict.fromkeys(("records", "units", "entries"), "true or false: true with --deep"),
    "clean_shutdown": _TRUTH,
    "commit_log": shapes.integers("min_offset", "max_offset", "records", "bytes"),
    "queues": shapes.integers("count", "units"),
    "index": shapes.integers("files", "entries"),
    "findings": [FINDING],
}
STATUS: shapes.Shape = shape_of(Status)
del STATUS["operations"][0]["buckets"]
EXPORT: shapes.Shape = {
    "out": "text",
    "version": "integer: of the manifest",
    **shapes.integers("rows", "files", "bytes", "rows_in_all", "files_in_all"),
    "damaged": "integer: places passed over",
    "seconds": "number",
}
SQLITE: shapes.Shape = shape_of(SqliteResult, damaged="integer: places passed over")
BACKUP: shapes.Shape = {
    "from": "integer: log offset",
    "to": "integer: log offset",
    "bytes": "integer: of the log, copied now",
    "files": "integer: written now",
    "verified": _TRUTH,
    "damaged": [["integer: log offset, from and to"]],
    "shortfall": "text, only where acknowledged messages may be missing: why",
}
QUEUE: shapes.Shape = {
    "topic": "text",
    **shapes.integers("queue_id", "min_offset"),
    "max_offset": "integer: of the next message",
}

_USER: shapes.Shape = {
    "name": "text",
    "type": "Super or Normal",
    "status": "enable or disable",
    "has_password": _TRUTH,
    "public_keys": ["text"],
    "changed_ms": "integer",
}
_ENTRY: shapes.Shape = {
    "policy": "Custom or Default",
    "resource": "text",
    "actions": ["text"],
    "sources": ["text"],
    "decision": "Allow or Deny",
}
_OF_COMMANDS: dict[str, shapes.Shape | tuple[shapes.Shape, ...]] = {
    "health": shape_of(HealthStatus),
    "status": STATUS,
    "top": STATUS
    | {
        "interval_s": "number",
        "rates": {"records_per_s": "number", "appended_bytes_per_s": "number"},
        "operations": [
            {
                "op": "text",
                "per_s": "number",
                "failed_per_s": "number",
                "p50_ms": "number, or null: of the interval",
                "p99_ms": "number, or null: of the interval",
            }
        ],
        "dispatch_lag_bytes": shapes.integers("queues", "index"),
        "processes": [shape_of(ProcessStatus, cpu_percent="number: of one processor, or null")],
    },
    "diag": {
        "path": "text",
        "bytes": "integer",
        "files": ["text"],
        "problems": ["text: what is missing"],
    },
    "produce": shapes.RECEIPT,
    "consume": shapes.MESSAGE,
    "topic ls": shape_of(
        TopicInfo,
        perm="integer: 2 write, 4 read",
        messages="integer",
        bytes="integer: of their records in the log, an estimate of large queues; or null",
        oldest_ms="integer: when the oldest was stored, ms since 1970, or null",
    ),
    "topic describe": {
        "topic": "text",
        **shapes.integers("perm", "read_queues", "write_queues", "retention_hours"),
        "queues": [QUEUE | {"bytes": "integer", "oldest_ms": "integer: ms since 1970, or null"}],
    },
    "group ls": {
        "group": "text",
        **shapes.integers("members", "lag"),
        "lag_ms": "integer: the age of the oldest that is not committed, or null",
    },
    "group describe": {
        "group": "text",
        "members": [shape_of(GroupMemberInfo)],
        "queues": [shape_of(GroupQueue)],
    },
    "group reset": {
        "group": "text",
        "queues": [{"topic": "text", **shapes.integers("queue_id", "committed")}],
    },
    "group rm": {"group": "text", "deleted": "true"},
    "topic create": shape_of(TopicCreated),
    "topic rm": shape_of(TopicDeleted, deleted="true", until="integer: ms since 1970, or null"),
    "topic purge": shape_of(TopicPurged),
    "msg get": shapes.MESSAGE,
    "msg find": shapes.MESSAGE,
    "dead ls": (
        shapes.MESSAGE
        | {
            "origin_topic": "text: the topic that its producer named",
            "sent_back": "true or false: whether it was sent back since",
        },
        {"group": "text, without GROUP", "dead": "integer"},
    ),
    "dead resend": {
        **shapes.texts("group", "topic"),
        "found": "integer: that were chosen",
        "sent_back_before": "integer: of them, passed over",
        "sent": "integer; without --apply: that would be sent",
        "applied": "true or false",
    },
    "export": (
        SQLITE,
        EXPORT,
        {
            "out": "text",
            "rows": "integer",
            "damaged": "integer: places passed over, and bodies printed as stored",
        },
    ),
    "store info": {
        "path": "text",
        "last_owner": "keelog or rocketmq",
        "clean_shutdown": _TRUTH,
        "commit_log": {
            **shapes.integers("min_offset", "max_offset", "segments", "segment_bytes"),
            "oldest_ms": "integer: when the oldest message was stored, ms since 1970, or null",
            "torn_tail": "null, or offset, kind and why",
        },
        "queues": shapes.integers("topics", "count", "file_bytes"),
        "index": shapes.integers("files", "slots", "entries_max"),
        "checkpoint": {"NAME": "integer: ms since 1970, or an offset"},
        "keelog": "null for a broker's store, else epoch, floor, tails_at and progress",
        "disk_bytes": {"FOLDER": "integer"},
    },
    "store dump": (shapes.MESSAGE_RAW, shapes.UNIT, shapes.ENTRY, shapes.INDEX_HEADER),
    "store get": shapes.PULL,
    "store find": (shapes.MESSAGE, {"physical_offset": "integer: with --candidates"}),
    "store seek": {"offset": "integer: of the queue"},
    "store verify": VERIFY,
    "store backup": BACKUP,
    "store restore": BACKUP,
    "store repair": {
        "ok": _TRUTH,
        "applied": _TRUTH,
        "steps": [{"step": "text, and what the step needs"}],
        "lost": {
            **shapes.integers("messages", "unknown_bytes"),
            "queues": [
                {"topic": "text", "queue_id": "integer", "from": "integer", "to": "integer"}
            ],
        },
    },
    "replica promote": shape_of(
        Promotion,
        offset="integer: log offset where its own log begins",
        acknowledged="integer: up to here the master knew it to be on this disk",
        source="text: whom it followed",
        master_end="integer: of the master's log, when it was last known",
        last_contact_ms="integer: ms since 1970, or 0",
        progress_ms="integer: ms since 1970, or 0; what was delivered later comes again",
    )
    | {"topics": ["text: a topic that the log has, and the master's table of topics had not yet"]},
    "replica demote": shape_of(StoreRole),
    "replica rewind": shape_of(Rewind, kept_in="text: the folder with what was cut, or empty"),
    "store rebuild": shape_of(
        RebuildReport, start="integer: log offset", end="integer: log offset"
    ),
    "store export": (EXPORT, SQLITE),
    "config show": {
        "setting": "text: node, or store.NAME",
        "value": "text, integer, true or false",
        "default": "the same: with --origin",
        "origin": "default, file, environment, -X, flag or context: with --origin",
        "where": "text: the file, variable or context: with --origin",
    },
    "config check": shape_of(SettingProblem),
    "key init": _KEY,
    "key new": _KEY,
    "key show": _KEY,
    "context ls": {
        **shapes.texts("name", "node", "description"),
        "current": "true or false: whether it is in use",
    },
    "spark rebuild": {
        "start": "integer: log offset",
        "end": "integer: log offset",
        **shapes.integers(
            "records", "queues", "units", "queue_files", "index_files", "index_entries"
        ),
        "ranges": "integer: parts of the log",
        "repaired": "true or false: whether ranges were cut anew",
        "seconds": "number",
    },
    "spark audit": VERIFY
    | {"findings": [FINDING | {"repair": "text: a command"}], "seconds": "number"},
    "spark export": EXPORT,
    "spark stats": {
        "totals": shapes.integers("messages", "queues", "topics"),
        "window_ms": "integer",
        "topics": [{"topic": _FIGURES}],
        "queues": [{"topic": "text", "queue_id": "integer, and its figures"}],
        "sizes": [{"topic": _FIGURES}],
        "tags": [{"topic": _FIGURES}],
        "keys": [{"topic": _FIGURES}],
        "rates": [{"topic": _FIGURES}],
        "tag_rates": [{"topic": _FIGURES}],
    },
    "user create": {**_USER, "password": "text: only one that was made"},
    "user ls": _USER,
    "user show": {**_USER, "entries": [_ENTRY]},
    "user set": {**_USER, "password": "text: only one that was made"},
    "user rm": {"name": "text", "deleted": _TRUTH, "entries": "integer: of the list"},
    "user import": {"name": "text", "imported": _TRUTH},
    "acl allow": {"user": "text", **_ENTRY},
    "acl deny": {"user": "text", **_ENTRY},
    "acl ls": {"user": "text", **_ENTRY},
    "acl rm": {"user": "text", "deleted": "integer: entries"},
    "acl check": {"user": "text", "allowed": _TRUTH, "why": "text", "entry": "null, or an entry"},
    "demo": {
        "sent": "integer",
        "left_out": {"REASON": "integer"},
        **shapes.integers(
            "stored", "dispatched", "pulled_equal", "found_by_key", "found_by_time", "looked_up"
        ),
        "verified": {
            "ok": _TRUTH,
            "clean_shutdown": _TRUTH,
            **shapes.integers("records", "units", "entries", "findings"),
        },
        "store": "text",
        "seconds": "number",
        "spark_topics": [{"topic": _FIGURES}],
    },
    "bench compare": {
        "figure": "text",
        "before": "number",
        "after": "number",
        "ratio": "number",
        "verdict": "same, better or worse",
    },
}
"""More than one where the options of a command choose."""
SHAPES = {name: one if isinstance(one, tuple) else (one,) for name, one in _OF_COMMANDS.items()}


def shape_text(command: str) -> str:
    """The shapes of a command, as JSON with kinds for values. Raises BadRequest without one."""
    found = SHAPES.get(command)
    if found is None:
        raise BadRequest(f"the shape of keelog {command} is not written down", "try --json")
    return "\n\nor\n\n".join(json.dumps(one, indent=2, ensure_ascii=False) for one in found)
