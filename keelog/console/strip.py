"""The strip on every page: how the node is, at its last look, and what fails."""

from typing import NamedTuple

from keelog.console.ask import Ask
from keelog.console.node_link import State
from protocol.status import HealthCheck

STALE_S = 3.5
"""A look that is older is said to be."""
CLOCKS_APART_MS = 5_000


class Strip(NamedTuple):
    """The values in the strip."""

    name: str
    is_known: bool
    """Whether the node has ever answered."""
    is_stale: bool
    age_s: float
    at_ms: int
    trouble: str
    ready: bool
    mode: str
    cause: str
    sees_all: bool
    """Whether the viewer may see figures of the whole node."""
    in_per_s: float | None
    unflushed_bytes: int
    disk_ratio: float | None
    lag: int
    failing: tuple[HealthCheck, ...]


def strip_of(ask: Ask) -> Strip:
    """For the page that is asked for."""
    state = ask.state()
    look = state.look
    sees_all = ask.viewer.may_ask("status")
    trouble = "" if state.trouble is None else state.trouble.reason
    if look is None:
        return Strip(
            ask.node.shown, False, True, 0.0, ask.now_ms, trouble, False, "", "", sees_all,
            None, 0, None, 0, (),
        )  # fmt: skip
    status, raw = look.status, look.status.raw
    return Strip(
        name=node_name(state),
        is_known=True,
        is_stale=bool(trouble) or state.age_s > STALE_S,
        age_s=state.age_s,
        at_ms=look.at_ms,
        trouble=trouble,
        ready=look.health.ready,
        mode=status.mode,
        cause=status.cause or "",
        sees_all=sees_all,
        in_per_s=None if state.figures is None else state.figures["rates"]["records_per_s"],
        unflushed_bytes=max(0, status.log.appended - status.log.flushed),
        disk_ratio=status.disk.used_ratio,
        lag=raw.get("groups", {}).get("lag", 0),
        failing=tuple(one for one in look.health.checks if not one.ok),
    )


def node_name(state: State) -> str:
    """The name of the node for people: the folder of its store."""
    look = state.look
    return "" if look is None else look.status.store.rstrip("/").rpartition("/")[2]
