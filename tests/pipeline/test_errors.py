"""Errors on their way through Spark: which condition each kind gets, and what comes back."""

import pickle

import pytest

from keelog.pipeline.errors import (
    KINDS,
    DataLoss,
    StoreUnreadable,
    named,
    naming_conditions,
    naming_node,
)
from protocol.errors import (
    BadRequest,
    MessageDamaged,
    MqError,
    NodeBusy,
    NotAStore,
    NotConnected,
    OffsetOutOfRange,
    RequestTimeout,
    SendTimeout,
    StoreLocked,
    UnknownTopic,
)


@pytest.mark.parametrize(
    ("error", "condition"),
    [
        (NotAStore("x", "y"), "KEELOG_NOT_A_STORE"),
        (BadRequest("x", "y"), "KEELOG_BAD_OPTION"),
        (UnknownTopic("x", "y"), "KEELOG_UNKNOWN_TOPIC"),
        (OffsetOutOfRange("x", "y", 3, 4), "KEELOG_OFFSET_OUT_OF_RANGE"),
        (MessageDamaged("f", 7, "bad", "y"), "KEELOG_STORE_DAMAGED"),
        (DataLoss("x", "y"), "KEELOG_DATA_LOSS"),
        (StoreLocked("x", "y"), "KEELOG_STORE_UNREADABLE"),
        (NotConnected("x", "y"), "KEELOG_NODE_UNREACHABLE"),
        (RequestTimeout("x", "y"), "KEELOG_NODE_UNREACHABLE"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, MqError) else "",
)
def test_an_error_of_a_store_gets_its_condition_and_comes_back(
    error: MqError, condition: str
) -> None:
    reason = error.reason
    with pytest.raises(MqError) as caught, naming_conditions(), naming_conditions():
        raise error
    hint = "start the node, or a larger fetch.timeoutMs; see keelog health; a node with keys needs"
    hint += " key and serverKey"
    hint = hint if "UNREACHABLE" in condition else "y"
    assert str(caught.value) == f"[{condition}] {reason}. Try: {hint}"
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    back = named(f"Job aborted: {type(error)}: {caught.value}\n  at java", "it failed")
    assert (str(back), back.reason) == (str(caught.value), reason)
    assert isinstance(back, KINDS[condition])


def test_a_kind_keeps_its_fields_and_one_that_is_unnamed_is_unreadable() -> None:
    with pytest.raises(OffsetOutOfRange) as caught, naming_conditions():
        raise OffsetOutOfRange("x", earliest=3)
    assert caught.value.earliest == 3
    with pytest.raises(StoreUnreadable), naming_conditions():
        raise StoreLocked("x")
    assert str(OffsetOutOfRange("x", "y")) == "x"


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (NotConnected("x", "y"), "[KEELOG_NODE_UNREACHABLE] node n: x. Try: y"),
        (NodeBusy("x"), "[KEELOG_NODE_BUSY] node n: x"),
        (SendTimeout("x"), "[KEELOG_NODE_REFUSED] node n: SendTimeout: x"),
        (DataLoss("x"), "[KEELOG_DATA_LOSS] x"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, MqError) else "",
)
def test_an_error_of_a_node_that_is_written_to_names_the_node(error: MqError, text: str) -> None:
    with pytest.raises(MqError) as caught, naming_node("n"):
        raise error
    assert str(caught.value) == text
