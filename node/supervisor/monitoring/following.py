"""How a replica follows its master: for status, health and metrics."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from node.runtime.following.state import (
    COMPARING,
    CONNECTING,
    FOLLOWING,
    STOPPED,
    WAITING,
    FollowState,
    read_follow_state,
)
from node.runtime.process import now_ms
from node.runtime.settings import Settings

STATES = (CONNECTING, COMPARING, FOLLOWING, WAITING, STOPPED)


def following(root: Path, settings: Settings) -> dict[str, Any] | None:
    """The state as status shows it; None for a node that follows nobody."""
    if not settings.follow:
        return None
    return {**read_follow_state(root)._asdict(), "source": settings.follow}


def following_check(root: Path) -> tuple[bool, str]:
    """Whether the replica follows, and its state in words."""
    state = read_follow_state(root)
    failed = ", ".join(f"{part} ({why})" for part, why in state.metadata.items() if why)
    words = state_text(state)
    if failed and state.state == FOLLOWING:
        words += f"; not taken over: {failed}"
    return state.state in (FOLLOWING, COMPARING), words


def state_text(state: FollowState) -> str:
    """One line for people."""
    master = state.master or state.source or "its master"
    if state.state == FOLLOWING:
        return f"follows {master}, lag {state.lag_bytes} bytes, {state.lag_ms / 1000:.1f} s"
    if state.state == STOPPED:
        return f"stopped following {master}: {state.kind}: {state.reason}"
    why = state.reason or state.disconnected
    since_s = (now_ms() - state.disconnected_ms) / 1000
    since = f", without it for {since_s:.0f} s" if state.disconnected_ms else ""
    return f"{state.state} to {master}{since}" + (f": {why}" if why else "")


def following_families(
    root: Path, settings: Settings, labels: Mapping[str, str]
) -> Iterator[Metric]:
    """Yields nothing for a node that follows nobody."""
    if not settings.follow:
        return
    state, node = read_follow_state(root), list(labels.values())
    text = "1 for the state in which a replica is."
    gauge = GaugeMetricFamily("keelog_replica_state", text, labels=[*labels, "state"])
    for name in STATES:
        gauge.add_metric([*node, name], int(state.state == name))
    yield gauge
    for name, text, value in (
        (
            "keelog_replica_lag_bytes",
            "What the master's log had more when it was heard last.",
            state.lag_bytes,
        ),
        (
            "keelog_replica_lag_seconds",
            "The age of what the master has more, or may have while it is away.",
            state.lag_ms / 1000,
        ),
        (
            "keelog_replica_acknowledged_offset_bytes",
            "Up to here the master knows the log to be on the disk of the replica.",
            state.acknowledged,
        ),
    ):
        single = GaugeMetricFamily(name, text, labels=list(labels))
        single.add_metric(node, value)
        yield single
    text = "Connections to the master since the process began."
    counter = CounterMetricFamily("keelog_replica_connections", text, labels=list(labels))
    counter.add_metric(node, state.connections)
    yield counter
