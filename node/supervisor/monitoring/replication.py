"""What replication does at a node, for status and health.

How a replica follows its master, who follows the node (from the file of their process), and what
controllers have decided of it.
"""

from collections.abc import Sequence
from pathlib import Path

from node.runtime.process import now_ms
from node.runtime.run_files import (
    COMPARING,
    FOLLOWING,
    STOPPED,
    ElectedState,
    FollowersState,
    FollowState,
    read_elected,
    read_follow_state,
    read_followers,
)
from node.runtime.settings import Settings
from node.supervisor.plan import Child, ChildRole

CONTROLLERS_HEARD_S = 10.0
"""After so long without an answer of the controllers the check is bad."""


def following_check(root: Path) -> tuple[bool, str]:
    """Whether the replica follows, and its state in words."""
    state = read_follow_state(root)
    failed = ", ".join(f"{part} ({why})" for part, why in state.metadata.items() if why)
    words = following_text(state)
    if failed and state.state == FOLLOWING:
        words += f"; not taken over: {failed}"
    return state.state in (FOLLOWING, COMPARING), words


def following_text(state: FollowState) -> str:
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


def elected_check(root: Path) -> tuple[bool, str]:
    """Whether the controllers answer, and what they have decided in words."""
    state = read_elected(root)
    silent_s = (now_ms() - state.heard_ms) / 1000
    if silent_s > CONTROLLERS_HEARD_S:
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
