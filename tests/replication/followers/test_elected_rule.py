"""Which followers must have a message, where a controller elects the master."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from keelog.replication.followers.book import ElectedRule
from node.runtime.run_files import SyncState, forget_sync_state, write_sync_state


def follower(broker_id: int, acknowledged: int | None) -> Any:
    return SimpleNamespace(broker_id=broker_id, acknowledged=acknowledged)


def a_rule(root: Path, *required: int) -> ElectedRule:
    (root / "keelog" / "run").mkdir(parents=True)
    rule = ElectedRule(root, own_id=1)
    write_sync_state(root, SyncState(7, frozenset(required)))
    rule.look()
    return rule


def test_nothing_is_acknowledged_before_anybody_said_who_must_have_it(tmp_path: Path) -> None:
    rule = a_rule(tmp_path, 1, 2)
    assert rule.number == 7
    assert rule.acknowledged([follower(2, 50)], 1) == 50
    forget_sync_state(tmp_path)
    rule.look()
    assert rule.number == -1
    assert rule.acknowledged([follower(2, 50)], 1) == 0


def test_all_of_the_sync_state_set_must_have_it(tmp_path: Path) -> None:
    rule = a_rule(tmp_path, 1, 2, 3)
    assert rule.acknowledged([follower(2, 50), follower(3, 40)], 1) == 40
    assert rule.acknowledged([follower(2, 50)], 1) == 0, "node 3 may be elected"
    assert rule.acknowledged([follower(2, 50), follower(3, None)], 1) == 0


def test_a_follower_outside_the_set_counts_for_the_number_alone(tmp_path: Path) -> None:
    rule = a_rule(tmp_path, 1)
    assert rule.acknowledged([], 1) == 0, "the master alone is no copy"
    assert rule.acknowledged([follower(2, 50)], 1) == 50
    assert rule.acknowledged([follower(2, 50)], 2) == 0


def test_two_connections_of_one_node_are_one_copy(tmp_path: Path) -> None:
    rule = a_rule(tmp_path, 1)
    assert rule.acknowledged([follower(2, 50), follower(2, 40)], 2) == 0
    assert rule.acknowledged([follower(2, 50), follower(2, 40)], 1) == 50
    assert rule.acknowledged([follower(1, 50)], 1) == 0, "nobody follows himself"
    assert rule.acknowledged([follower(0, 50)], 1) == 0, "it did not say who it is"
