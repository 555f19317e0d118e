"""What controllers have decided of a node: for status, health and metrics."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from prometheus_client.core import GaugeMetricFamily, Metric

from node.runtime.following.elected_state import ElectedState, read_elected
from node.runtime.process import now_ms
from node.runtime.settings import Settings

HEARD_S = 10.0
"""After so long without an answer of the controllers the check is bad."""


def elected(root: Path, settings: Settings) -> dict[str, Any] | None:
    """The state as status shows it; None for a node without controllers."""
    return read_elected(root)._asdict() if settings.controller_id else None


def elected_check(root: Path) -> tuple[bool, str]:
    """Whether the controllers answer, and what they have decided in words."""
    state = read_elected(root)
    silent_s = (now_ms() - state.heard_ms) / 1000
    if silent_s > HEARD_S:
        why = f": {state.why}" if state.why else ""
        return False, f"no controller has answered for {silent_s:.0f} s{why}"
    return not state.why, state.why or elected_text(state)


def elected_text(state: ElectedState) -> str:
    """One line for people."""
    ids = ", ".join(map(str, state.in_sync)) or "nobody"
    return (
        f"node {state.broker_id} {state.role}, epoch {state.epoch}, master {state.master_id} at"
        f" {state.master or 'no place'}, in sync {ids}; {state.controllers} of"
        f" {state.controllers_all} controllers hear it, {state.leader or 'none'} leads them"
    )


def elected_families(root: Path, settings: Settings, labels: Mapping[str, str]) -> Iterator[Metric]:
    """Yields nothing for a node without controllers."""
    if not settings.controller_id:
        return
    state, node = read_elected(root), list(labels.values())
    for name, text, value in (
        ("keelog_elected_epoch", "The epoch of the elected master.", state.epoch),
        ("keelog_elected_leads", "1 at the elected master.", int(not settings.follow)),
        ("keelog_elected_in_sync", "Nodes of which a master may be elected.", len(state.in_sync)),
        ("keelog_elected_controllers", "Controllers that hear the node.", state.controllers),
    ):
        gauge = GaugeMetricFamily(name, text, labels=list(labels))
        gauge.add_metric(node, value)
        yield gauge
