"""Who follows the node: for status, health and metrics, from the file of their process."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from prometheus_client.core import GaugeMetricFamily, Metric

from node.runtime.settings import Settings
from node.runtime.stats.followers_state import FollowersState, read_followers
from node.supervisor.plan import Child, ChildRole


def followers_of(root: Path, children: Sequence[Child]) -> FollowersState | None:
    """None for a node that nobody may follow; nobody while the process does not run."""
    found = [child for child in children if child.role is ChildRole.FOLLOWERS]
    if not found:
        return None
    state = read_followers(root)
    return state if found[0].is_alive else state._replace(followers=())


def followers_check(state: FollowersState, settings: Settings) -> tuple[bool, str]:
    """Whether as many are in sync as messages need, and how they are, in words."""
    needed = settings.followers_needed if settings.waits_for_followers else 0
    rows = state.followers
    late = max(rows, key=lambda row: row.lag_bytes, default=None)
    text = f"{len(rows)} connected, {state.in_sync} in sync"
    if needed:
        text += f", {needed} needed"
    if late is not None:
        text += f"; the largest lag is {late.lag_bytes} bytes, {late.lag_s:.1f} s"
    elif state.ended:
        text += f"; the last one was {state.ended[0].address}: {state.ended[0].reason}"
    return state.in_sync >= needed, text


def follower_families(root: Path, children: Sequence[Child]) -> Iterator[Metric]:
    """Yields them for a node that may be followed. Addresses are not labels: the slowest counts."""
    state = followers_of(root, children)
    if state is None:
        return
    rows = state.followers
    values: Mapping[str, tuple[str, float]] = {
        "keelog_followers": ("Followers that are connected.", len(rows)),
        "keelog_followers_in_sync": ("Of these, those that are in sync.", state.in_sync),
        "keelog_followers_acknowledged_offset_bytes": (
            "Up to here as many followers have the log as a replicated message needs.",
            state.acknowledged,
        ),
        "keelog_followers_lag_bytes": (
            "Of the slowest follower.",
            max((row.lag_bytes for row in rows), default=0),
        ),
        "keelog_followers_lag_seconds": (
            "As keelog_followers_lag_bytes, in time.",
            max((row.lag_s for row in rows), default=0.0),
        ),
    }
    for name, (text, value) in values.items():
        yield GaugeMetricFamily(name, text, value)
