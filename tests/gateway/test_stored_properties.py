"""What a broker stores as the properties of a message, against a plain map of them."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelog.gateway.sending.stored_properties import (
    broker_properties,
    own_recall,
    stored_properties,
    unique_key_of,
    waits_for_disk,
)
from protocol.errors import IllegalMessage
from protocol.record.properties import decode_properties

ADDED = broker_properties("c1")
OURS = {"CLUSTER": "c1", "MSG_REGION": "DefaultRegion", "TRACE_ON": "true"}
NAMES = st.sampled_from(
    ["a", "TAGS", "KEYS", "UNIQ_KEY", "XUNIQ_KEY", "CLUSTER", "POP_CK", "TRACE_ON", "__CRC32#"]
)
PAIRS = st.dictionaries(NAMES, st.text("ab1 ", min_size=1), max_size=6)


def new_key() -> str:
    """Of a message whose client made none."""
    return "KEY"


@given(pairs=PAIRS, ends=st.booleans())
def test_the_broker_adds_its_own_and_keeps_the_clients(pairs: dict[str, str], ends: bool) -> None:
    text = "\x02".join(f"{name}\x01{value}" for name, value in pairs.items())
    sent = (text + "\x02" if ends and text else text).encode()
    stored = decode_properties(stored_properties(sent, ADDED, new_key))
    kept = {name: pairs[name] for name in pairs if name not in (*OURS, "POP_CK", "__CRC32#")}
    assert stored == {"UNIQ_KEY": "KEY", **kept, **OURS}


@given(pairs=PAIRS, wait=st.sampled_from([None, "true", "false"]), other=st.booleans())
def test_only_the_property_itself_says_that_nobody_waits_for_the_disk(
    pairs: dict[str, str], wait: str | None, other: bool
) -> None:
    given_pairs = {**pairs, **({"AWAIT": "false"} if other else {})}
    if wait is not None:
        given_pairs["WAIT"] = wait
    sent = "\x02".join(f"{name}\x01{value}" for name, value in given_pairs.items()).encode()
    assert waits_for_disk(stored_properties(sent, ADDED, new_key)) == (wait != "false")


@given(pairs=PAIRS)
def test_a_batchs_message_gets_nothing_but_a_key(pairs: dict[str, str]) -> None:
    sent = "".join(f"{name}\x01{value}\x02" for name, value in pairs.items()).encode()
    stored = stored_properties(sent, b"", new_key)
    key = unique_key_of(stored).decode()
    assert key == pairs.get("UNIQ_KEY", "KEY") == decode_properties(stored)["UNIQ_KEY"]


@given(
    pairs=st.lists(
        st.sampled_from(
            ["a\x01b", "TAGS\x01red", "INSTANCE_ID\x01", "\x01b", "\x01", "", "c", "d\x01e"]
        ),
        max_size=5,
    ),
    ends=st.booleans(),
)
def test_a_pair_without_a_name_or_a_value_is_left_out(pairs: list[str], ends: bool) -> None:
    sent = ("\x02".join(pairs) + ("\x02" if ends else "")).encode()
    stored = stored_properties(sent, ADDED, new_key)
    assert decode_properties(stored) == {**decode_properties(sent), "UNIQ_KEY": "KEY", **OURS}
    kept = [pair.split(b"\x01") for pair in stored.removesuffix(b"\x02").split(b"\x02")]
    assert all(len(pair) == 2 and all(pair) for pair in kept), "the writer takes no others"


@pytest.mark.parametrize("pair", ["INNER_NUM\x012"])
def test_what_asks_for_more_than_storing_is_refused(pair: str) -> None:
    for sent in (pair, f"a\x01b\x02{pair}\x02"):
        with pytest.raises(IllegalMessage, match="which this node does not offer"):
            stored_properties(sent.encode(), ADDED, new_key)


@pytest.mark.parametrize("pair", ["DELAY\x010", "TRAN_MSG\x01false", "TRAN_MSG\x01true"])
def test_what_asks_for_nothing_is_stored(pair: str) -> None:
    name, _, value = pair.partition("\x01")
    stored = decode_properties(stored_properties(f"a\x01b\x02{pair}\x02".encode(), ADDED, new_key))
    assert (stored[name], stored["a"]) == (value, "b")


@pytest.mark.parametrize("named", ["K", "theirs+K", "mine+K"])
def test_a_user_takes_back_timer_messages_of_the_own_topic_alone(named: str) -> None:
    given = f"TAGS\x01a\x02TIMER_DEL_UNIQKEY\x01{named}\x02".encode()
    found = decode_properties(own_recall(given, "mine"))
    assert found["TAGS"] == "a"
    back = {found["TIMER_DEL_UNIQKEY"]}
    for topic, key in (("theirs", "K"), ("mine", "K")):
        keys = {key, f"{topic}+{key}"}  # as `keys_of` names a message of the topic
        assert (topic == "mine" and named != "theirs+K") is not back.isdisjoint(keys)


def test_what_takes_nothing_back_stays_as_it_is() -> None:
    given = b"TAGS\x01TIMER_DEL_UNIQKEY\x02"
    assert own_recall(given, "mine") is given
