"""The status of a node: each field is declared once, with what it means and its metric.

A field is `Annotated[int, Fact("what it means")]` in a NamedTuple or dataclass. The node's
answer, its metrics, the client's results, and what `--format help` shows derive from it.
`node/supervisor/status.py::Status` is the whole answer. Its parts are here where a client has them
too, and else with the process that knows them, as in `node/runtime/run_files.py`.
"""

import dataclasses
from collections.abc import Mapping
from types import NoneType, UnionType
from typing import Annotated, Any, NamedTuple, get_args, get_origin, get_type_hints

AT_MS = "ms since 1970"
_KINDS = {str: "text", int: "integer", float: "number", bool: "true or false"}


class Fact(NamedTuple):
    """What a field means, and the metric that shows it, where it has one of its own.

    The metric of a field in ms is in seconds, that of a list is its length. A counter's ends with
    `_total`; all others are gauges.
    """

    meaning: str = ""
    metric: str = ""
    names: tuple[str, ...] = ()
    """The names in a field that is a map."""


@dataclasses.dataclass(frozen=True, slots=True)
class ProcessStatus:
    """One process of the node; fields that the node did not give are None."""

    role: Annotated[str, Fact("writer, queue, index, reader, …")]
    index: int | None = None
    pid: int | None = None
    state: str | None = None
    restarts: int | None = None
    uptime_s: float | None = None
    rss_bytes: int | None = None
    cpu_s: float | None = None
    endpoint: str | None = None
    offset: int | None = None
    lag_bytes: int | None = None
    exit_code: int | None = None
    cause: Annotated[str | None, Fact("why it ended last, until it runs again")] = None
    recovered: Annotated[
        float | None, Fact("the part of the log that a writer that recovers has checked")
    ] = None


@dataclasses.dataclass(frozen=True, slots=True)
class LogStatus:
    """Log offsets: every byte below `flushed` survives a power loss."""

    min: Annotated[int, Fact("where the log begins", "keelog_commitlog_min_offset_bytes")] = 0
    appended: Annotated[int, Fact("the end of the log", "keelog_commitlog_max_offset_bytes")] = 0
    committed: int = 0
    flushed: Annotated[
        int, Fact("up to here the log is on the disk", "keelog_commitlog_flushed_offset_bytes")
    ] = 0
    readable: Annotated[
        int, Fact("up to here the log may be read", "keelog_commitlog_readable_offset_bytes")
    ] = 0
    epoch: Annotated[
        int, Fact("counts the recoveries that changed the log", "keelog_commitlog_epoch")
    ] = 0
    records: int = 0
    ahead_ms: Annotated[
        int,
        Fact("how far the newest store time lies ahead of the clock", "keelog_store_ahead_seconds"),
    ] = 0


@dataclasses.dataclass(frozen=True, slots=True)
class DiskStatus:
    """The file system that holds the store."""

    free_bytes: Annotated[
        int | None, Fact("bytes that are free", "keelog_store_disk_free_bytes")
    ] = None
    used_ratio: Annotated[
        float | None, Fact("used part, 0 to 1", "keelog_store_disk_used_ratio")
    ] = None
    shortage: Annotated[str | None, Fact("what so full a disk costs")] = None


@dataclasses.dataclass(frozen=True, slots=True)
class FoundDamage:
    """A damaged place of the store that processes of the node have met since it started."""

    file: str
    offset: Annotated[int, Fact("as in the error: of the log, or bytes in another file")]
    found: str
    count: Annotated[int, Fact("how often processes have met it")]
    first_ms: Annotated[int, Fact(AT_MS)]
    last_ms: Annotated[int, Fact(AT_MS)]
    process: str


@dataclasses.dataclass(frozen=True, slots=True)
class HealthCheck:
    """One thing that should be right; `needed` says whether readiness depends on it."""

    name: str
    ok: bool
    detail: str
    needed: Annotated[bool, Fact("whether ready asks for it")]


def facts_of(kind: type) -> dict[str, Fact]:
    """What a record declares of its fields."""
    hints = get_type_hints(kind, include_extras=True)
    return {name: getattr(hint, "__metadata__", (Fact(),))[0] for name, hint in hints.items()}


def shape_of(kind: type, **meanings: str) -> dict[str, Any]:
    """The fields of a record for people, as JSON has them: the kind of each, and what it means.

    `meanings` replace those of fields, or add some.
    """
    hints = get_type_hints(kind, include_extras=True)
    return {name: _shape(hint) for name, hint in hints.items()} | meanings


def _shape(hint: Any) -> Any:
    note = Fact()
    if get_origin(hint) is Annotated:
        hint, note = get_args(hint)
    said = f": {note.meaning}" if note.meaning else ""
    if get_origin(hint) is tuple:
        return [_shape(Annotated[get_args(hint)[0], note])]
    if get_origin(hint) is dict:
        return dict.fromkeys(note.names, f"{_KINDS[get_args(hint)[1]]}{said}")
    kind, *others = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    if kind not in _KINDS:
        return shape_of(kind)
    return f"{_KINDS[kind]}{', or null' if NoneType in others else ''}{said}"


def as_json(value: Any) -> Any:
    """A record, and all that is in it, as JSON has it."""
    if dataclasses.is_dataclass(value):
        value = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    elif hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, Mapping):
        return {name: as_json(one) for name, one in value.items()}
    return [as_json(one) for one in value] if isinstance(value, list | tuple) else value
