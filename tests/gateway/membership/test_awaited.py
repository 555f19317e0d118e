"""Members of groups that were there before the gateway started: who is named, and for how long."""

import json
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from keelog.gateway.members import BEAT_S, REJOIN_S, AwaitedMembers, Members
from protocol.remoting.codes import RequestCode
from protocol.remoting.header_fields import request_fields
from tests.gateway.test_members import Peer, beat, ids, request

NOW = 1_000.0


def member(client_id: str, language: str = "JAVA", version: int = 513) -> dict[str, Any]:
    return {"client_id": client_id, "language": language, "version": version, "address": "a:1"}


def before(*members: dict[str, Any]) -> AwaitedMembers:
    return AwaitedMembers({"g": {"members": list(members)}}, NOW)


def test_the_first_member_that_comes_back_is_not_alone() -> None:
    members, one, two = Members(before(member("c1"), member("c2"))), Peer(), Peer()
    assert sorted(ids(members)) == ["c1", "c2"]
    beat(members, one, "c1")
    assert sorted(ids(members)) == ["c1", "c2"]
    beat(members, two, "c2")
    assert sorted(ids(members)) == ["c1", "c2"], "each is named once"
    members.went(two)  # type: ignore[arg-type]
    assert ids(members) == ["c1"], "one that was back and went is awaited no more"


def test_a_client_that_beats_on_a_new_connection_is_awaited_for_a_shorter_time() -> None:
    java, old = member("new", version=513), member("old", version=409)
    awaited = before(java, old, member("go", "GO", 317), member("py", "PYTHON"))
    assert awaited.drop_due(NOW + REJOIN_S - 0.1) == []
    assert awaited.drop_due(NOW + REJOIN_S) == ["g"]
    assert sorted(awaited.groups["g"]) == ["go", "old"]
    assert awaited.drop_due(NOW + BEAT_S) == ["g"]
    assert not awaited.groups


def test_the_members_are_rung_when_one_is_awaited_no_more() -> None:
    members, one = Members(before(member("c1"), member("gone"))), Peer()
    beat(members, one, "c1", NOW)
    one.rings()
    members.drop_silent(NOW + 1.0)
    assert (one.rings(), sorted(ids(members))) == (0, ["c1", "gone"])
    members.drop_silent(NOW + REJOIN_S)
    assert (one.rings(), ids(members)) == (1, ["c1"])


def test_a_member_that_leaves_for_good_is_not_awaited() -> None:
    members, one = Members(before(member("c1"), member("c2"))), Peer()
    beat(members, one, "c1")
    one.rings()
    asked = request(Peer(), code=RequestCode.UNREGISTER_CLIENT, clientID="c2", consumerGroup="g")
    members.unregister(asked, request_fields(asked.header))
    assert (one.rings(), ids(members)) == (1, ["c1"])


def test_a_gateway_that_starts_again_and_again_awaits_nobody_for_longer() -> None:
    first = Members(before(member("gone"), member("c1")))
    beat(first, Peer(), "c1", NOW)
    first.drop_silent(NOW + 4.0)
    shown = json.loads(json.dumps(first.shown(NOW + 4.0, 0)))
    assert shown["g"]["awaited"] == {"gone": REJOIN_S - 4.0}
    second = AwaitedMembers(shown, 0.0)
    assert sorted(second.groups["g"]) == ["c1", "gone"]
    second.drop_due(REJOIN_S - 4.0)
    assert list(second.groups["g"]) == ["c1"], "one that was back is awaited anew"
    far = AwaitedMembers({"g": {"awaited": {"gone": 1e9}}}, 0.0)
    assert far.left("g") == {"gone": BEAT_S}


def test_a_group_of_which_nobody_is_back_is_kept_for_the_next_gateway() -> None:
    shown = Members(before(member("c1"))).shown(NOW, 0)
    assert list(AwaitedMembers(shown, NOW).groups["g"]) == ["c1"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


ENTRY = st.fixed_dictionaries({"members": JSON, "awaited": JSON})


@settings(max_examples=30, deadline=None)
@given(st.dictionaries(st.text(max_size=3), JSON | ENTRY))
def test_a_file_of_anything_at_all_awaits_nobody_or_texts(document: dict[str, Any]) -> None:
    awaited = AwaitedMembers(document, NOW)
    assert all(isinstance(one, str) for group in awaited.groups.values() for one in group)
