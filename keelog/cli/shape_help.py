"""The shapes of every command's JSON, for `--format help`: field by field, and the kind of each.

Adding a field is allowed, renaming or removing one is not.
"""

import json
from typing import Any

from protocol.errors import BadRequest

Shape = dict[str, Any]

MESSAGE: Shape = {
    "topic": "text",
    "queue_id": "integer",
    "queue_offset": "integer",
    "physical_offset": "integer",
    "store_size": "integer: bytes",
    "msg_id": "text: store host and physical offset, upper-case hex",
    "unique_key": "text",
    "tags": "text, empty without one",
    "keys": ["text"],
    "properties": {"NAME": 'text, or {"b64": text} when it is not UTF-8'},
    "flag": "integer",
    "sys_flag": "integer",
    "born_timestamp": "integer: ms since 1970",
    "born_host": "text: 1.2.3.4:5",
    "store_timestamp": "integer: ms since 1970",
    "store_host": "text",
    "body_crc": "integer",
    "reconsume_times": "integer",
    "prepared_transaction_offset": "integer",
    "version": "1 or 2",
    "body": "text; UTF-8 without NUL, else there is",
    "body_b64": "text; forced by --raw-body, both left out by --no-body",
}
RECEIPT: Shape = {
    "status": "PUT_OK, FLUSH_DISK_TIMEOUT, …",
    "topic": "text",
    "queue_id": "integer",
    "queue_offset": "integer",
    "physical_offset": "integer",
    "msg_id": "text",
    "unique_key": "text",
    "flushed": "true or false: whether the disk has it",
}
UNIT: Shape = {
    "topic": "text",
    "queue_id": "integer",
    "queue_offset": "integer",
    "physical_offset": "integer",
    "size": "integer: bytes of the record",
    "tags_code": "integer",
}
ENTRY: Shape = {
    "file": "text",
    "slot": "integer",
    "entry": "integer: counts from 1",
    "key_hash": "integer",
    "physical_offset": "integer",
    "time_diff_s": "integer",
    "prev": "integer",
}
INDEX_HEADER: Shape = {
    "file": "text",
    "begin_timestamp": "integer: ms since 1970",
    "end_timestamp": "integer: ms since 1970",
    "begin_physical_offset": "integer",
    "end_physical_offset": "integer",
    "slot_count": "integer",
    "index_count": "integer",
}
PULL: Shape = {
    "status": "FOUND, NO_MATCHED_MESSAGE, NO_MESSAGE_IN_QUEUE, OFFSET_FOUND_NULL, …",
    "next_begin_offset": "integer",
    "min_offset": "integer",
    "max_offset": "integer",
    "messages": [MESSAGE],
}
FINDING: Shape = {
    "severity": "error or warning",
    "kind": "torn_tail, bad_magic, bad_size, bad_crc, wrong_place, gap, …",
    "file": "text",
    "offset": "integer, or null",
    "topic": "text, or null",
    "queue_id": "integer, or null",
    "queue_offset": "integer, or null",
    "detail": "text",
}
VERIFY: Shape = {
    "ok": "true or false",
    "clean_shutdown": "true or false",
    "commit_log": {
        "min_offset": "integer",
        "max_offset": "integer",
        "records": "integer",
        "bytes": "integer",
    },
    "queues": {"count": "integer", "units": "integer"},
    "index": {"files": "integer", "entries": "integer"},
    "findings": [FINDING],
}
AUDIT: Shape = VERIFY | {
    "findings": [FINDING | {"repair": "text: a command"}],
    "seconds": "number",
}
STATS: Shape = {
    "totals": {"messages": "integer", "queues": "integer", "topics": "integer"},
    "window_ms": "integer",
    "topics": [{"topic": "text, and its figures"}],
    "queues": [{"topic": "text", "queue_id": "integer, and its figures"}],
    "sizes": [{"topic": "text, and its figures"}],
    "tags": [{"topic": "text, and its figures"}],
    "keys": [{"topic": "text, and its figures"}],
    "rates": [{"topic": "text, and its figures"}],
    "tag_rates": [{"topic": "text, and its figures"}],
}
DEMO: Shape = {
    "sent": "integer",
    "left_out": {"REASON": "integer"},
    "stored": "integer",
    "dispatched": "integer",
    "pulled_equal": "integer",
    "found_by_key": "integer",
    "found_by_time": "integer",
    "looked_up": "integer",
    "verified": "the shape of keelog store verify",
    "store": "text",
    "seconds": "number",
    "spark_topics": [{"topic": "text, and its figures"}],
}
PROCESS: Shape = {
    "role": "writer, queue, index or reader",
    "index": "integer",
    "pid": "integer",
    "state": "text",
    "restarts": "integer",
    "uptime_s": "number",
    "rss_bytes": "integer, or null",
    "cpu_s": "number, or null",
    "endpoint": "text",
    "offset": "integer, or null",
    "lag_bytes": "integer, or null",
    "exit_code": "integer, or null",
    "cause": "text, or null",
    "recovered": "number, or null",
}
STATUS: Shape = {
    "ready": "true or false",
    "mode": "normal, read_only, disk_full or no_resources",
    "cause": "text, or null",
    "store": "text",
    "kernel": "text",
    "http": "text: where metrics and health pages are, or null",
    "log_file": "text: the file that the node's log goes to, or null",
    "settings": ["NAME=VALUE: those that differ from their defaults"],
    "origins": [{"setting": "text", "origin": "file, environment, -X or option", "where": "text"}],
    "processes": [PROCESS],
    "log": {
        "min": "integer",
        "appended": "integer",
        "committed": "integer",
        "flushed": "integer",
        "readable": "integer",
        "epoch": "integer",
        "records": "integer",
    },
    "disk": {"free_bytes": "integer", "used_ratio": "number: 0 to 1"},
    "operations": [
        {
            "op": "text: append, pull, …, log_flush",
            "requests": "integer",
            "failed": "integer: answered otherwise than OK",
            "p50_ms": "number, or null: of all of them",
            "p99_ms": "number, or null",
        }
    ],
    "supervisor": {
        "pid": "integer",
        "state": "text",
        "uptime_s": "number",
        "rss_bytes": "integer",
        "cpu_s": "number",
    },
}
TOP: Shape = STATUS | {
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
    "dispatch_lag_bytes": {"queues": "integer", "index": "integer"},
    "processes": [PROCESS | {"cpu_percent": "number: of one processor, or null"}],
}
EXPORT: Shape = {
    "out": "text",
    "version": "integer: of the manifest",
    "rows": "integer",
    "files": "integer",
    "bytes": "integer",
    "rows_in_all": "integer",
    "files_in_all": "integer",
    "seconds": "number",
}
SQLITE: Shape = {
    "out": "text",
    "rows": "integer",
    "keys": "integer",
    "damaged": "integer: places passed over",
}
REPAIR: Shape = {
    "ok": "true or false",
    "applied": "true or false",
    "steps": [{"step": "text, and what the step needs"}],
    "lost": {
        "messages": "integer",
        "unknown_bytes": "integer",
        "queues": [{"topic": "text", "queue_id": "integer", "from": "integer", "to": "integer"}],
    },
}
INFO: Shape = {
    "path": "text",
    "last_owner": "keelog or rocketmq",
    "clean_shutdown": "true or false",
    "commit_log": {
        "min_offset": "integer",
        "max_offset": "integer",
        "segments": "integer",
        "segment_bytes": "integer",
        "torn_tail": "null, or offset, kind and why",
    },
    "queues": {"topics": "integer", "count": "integer", "file_bytes": "integer"},
    "index": {"files": "integer", "slots": "integer", "entries_max": "integer"},
    "checkpoint": {"NAME": "integer: ms since 1970, or an offset"},
    "keelog": "null for a broker's store, else epoch, floor, tails_at and progress",
    "disk_bytes": {"FOLDER": "integer"},
}
QUEUE: Shape = {
    "topic": "text",
    "queue_id": "integer",
    "min_offset": "integer",
    "max_offset": "integer: of the next message",
}

SHAPES: dict[str, tuple[Shape, ...]] = {
    "health": (
        {
            "ready": "true or false",
            "checks": [
                {
                    "name": "text",
                    "ok": "true or false",
                    "detail": "text",
                    "needed": "true or false: whether ready asks for it",
                }
            ],
        },
    ),
    "status": (STATUS,),
    "top": (TOP,),
    "diag": (
        {
            "path": "text",
            "bytes": "integer",
            "files": ["text"],
            "problems": ["text: what is missing"],
        },
    ),
    "produce": (RECEIPT,),
    "consume": (MESSAGE,),
    "topic ls": (
        {
            "topic": "text",
            "queues": "integer",
            "read_queues": "integer",
            "write_queues": "integer",
            "perm": "integer: 2 write, 4 read",
            "messages": "integer",
        },
    ),
    "topic describe": (
        {
            "topic": "text",
            "perm": "integer",
            "read_queues": "integer",
            "write_queues": "integer",
            "queues": [QUEUE],
        },
    ),
    "topic create": ({"topic": "text", "queues": "integer", "created": "true or false"},),
    "topic rm": ({"topic": "text", "deleted": "true"},),
    "msg get": (MESSAGE,),
    "msg find": (MESSAGE,),
    "store info": (INFO,),
    "store dump": (
        MESSAGE | {"record_b64": "text: the record as stored, with --raw"},
        UNIT,
        ENTRY,
        INDEX_HEADER,
    ),
    "store get": (PULL,),
    "store find": (MESSAGE, {"physical_offset": "integer: with --candidates"}),
    "store seek": ({"offset": "integer: of the queue"},),
    "store verify": (VERIFY,),
    "store repair": (REPAIR,),
    "store rebuild": (
        {
            "start": "integer: log offset",
            "end": "integer: log offset",
            "records": "integer",
            "queues": "integer",
            "queue_files": "integer",
            "index_files": "integer",
            "seconds": "number",
        },
    ),
    "store export": (EXPORT, SQLITE),
    "config show": (
        {
            "setting": "text: node, or store.NAME",
            "value": "text, integer, true or false",
            "default": "the same: with --origin",
            "origin": "default, file, environment, -X, flag or context: with --origin",
            "where": "text: the file, variable or context: with --origin",
        },
    ),
    "config check": (
        {
            "setting": "text",
            "line": "integer, or null",
            "problem": "text",
            "hint": "text",
        },
    ),
    "context ls": (
        {
            "name": "text",
            "node": "text",
            "description": "text",
            "current": "true or false: whether it is in use",
        },
    ),
    "spark rebuild": (
        {
            "start": "integer: log offset",
            "end": "integer: log offset",
            "records": "integer",
            "queues": "integer",
            "units": "integer",
            "queue_files": "integer",
            "index_files": "integer",
            "index_entries": "integer",
            "ranges": "integer: parts of the log",
            "repaired": "true or false: whether ranges were cut anew",
            "seconds": "number",
        },
    ),
    "spark audit": (AUDIT,),
    "spark export": (EXPORT,),
    "spark stats": (STATS,),
    "demo": (DEMO,),
    "bench compare": (
        {
            "figure": "text",
            "before": "number",
            "after": "number",
            "ratio": "number",
            "verdict": "same, better or worse",
        },
    ),
}
"""Of each command; more than one where its options choose."""


def shape_text(command: str) -> str:
    """The shapes of a command, as JSON with kinds for values. Raises BadRequest without one."""
    shapes = SHAPES.get(command)
    if shapes is None:
        raise BadRequest(f"the shape of keelog {command} is not written down", "try --json")
    return "\n\nor\n\n".join(json.dumps(one, indent=2, ensure_ascii=False) for one in shapes)
