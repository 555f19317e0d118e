"""Whole batches are encoded as their messages one by one, and refused with the same words."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BadRequest, IllegalMessage, MessageTooLarge, MqError
from protocol.ids import Host
from protocol.record.codec import Record, decode
from protocol.record.encode import BatchDraft, EncodedBatch, encode_columns, encode_columns_plain
from protocol.record.patch import AppendRules, check_plain
from tests.protocol.record.test_encode import TOPICS, WORDS

pytestmark = pytest.mark.usefixtures("way")

STEM = "7F0000010000000000000000A1B2"
BODY_MAX = 100
ONE_EACH = st.lists(WORDS, min_size=1, max_size=1)
ODD_ONE_EACH = st.one_of(ONE_EACH, st.sampled_from([[""], ["a b"], ["\2"], [5]]))
KEYS = st.one_of(WORDS, st.just(""), st.lists(WORDS, max_size=3))
ODD_KEYS = st.one_of(KEYS, st.sampled_from([" ", "a b", "\2", "a\1b", "\ud800", ["a", ""], ["\2"]]))


def draft_of(bodies: list[bytes], **fields: object) -> BatchDraft:
    sizes = [len(body) for body in bodies]
    known = {"topic": "orders", "stem": STEM, "born_host": Host(bytes([10, 0, 0, 5]), 7)}
    return BatchDraft(bodies=b"".join(bodies), sizes=sizes, **{**known, **fields})  # type: ignore[arg-type]


def outcome(found: EncodedBatch) -> tuple[bytes, list[int], int]:
    return found.records.tobytes(), found.sizes.tolist(), found.crc


def words_of(refused: MqError) -> tuple[type[MqError], str, str]:
    return type(refused), refused.reason, refused.hint


@st.composite
def drafts_of_batches(draw: st.DrawFn, keys: st.SearchStrategy[object] = KEYS) -> BatchDraft:
    bodies = draw(st.lists(st.binary(max_size=BODY_MAX), min_size=1, max_size=5))
    many = st.lists(keys, min_size=len(bodies), max_size=len(bodies))
    return draft_of(
        bodies,
        topic=draw(TOPICS),
        counter=draw(st.integers(0, 2**40)),
        queue_id=draw(st.integers(-1, 65_535)),
        tags=draw(st.one_of(st.just(""), WORDS)),
        keys=draw(st.one_of(st.none(), many)),
        born_timestamp=draw(st.integers(0, 2**62)),
        born_host=draw(st.sampled_from([Host(bytes(4), 0), Host(bytes(range(16)), 9)])),
    )


@given(st.one_of(drafts_of_batches(), drafts_of_batches(ONE_EACH)), st.booleans())
def test_a_batch_has_the_bytes_of_its_messages(draft: BatchDraft, crc: bool) -> None:
    found = encode_columns(draft, crc, BODY_MAX)
    assert outcome(found) == outcome(encode_columns_plain(draft, crc, BODY_MAX))
    rows = check_plain(found.records.tobytes(), AppendRules(BODY_MAX, crc))
    assert [row.size for row in rows] == found.sizes.tolist()


@given(st.one_of(drafts_of_batches(ODD_KEYS), drafts_of_batches(ODD_ONE_EACH)))
def test_a_batch_with_odd_keys_is_refused_as_its_messages_are(draft: BatchDraft) -> None:
    try:
        expected = outcome(encode_columns_plain(draft, True, BODY_MAX))
    except MqError as error:
        with pytest.raises(type(error)) as caught:
            encode_columns(draft, True, BODY_MAX)
        assert words_of(caught.value) == words_of(error)
    else:
        assert outcome(encode_columns(draft, True, BODY_MAX)) == expected


def test_a_message_of_a_batch_says_what_was_given() -> None:
    draft = draft_of([b"one", b""], tags="paid", keys=["k1", ("k2", "k3")], counter=0xFFFF)
    found = encode_columns(draft, True, BODY_MAX)
    first, second = (
        decode(found.records.tobytes(), at, sealed=False) for at in (0, int(found.sizes[0]))
    )
    assert isinstance(first, Record)
    assert isinstance(second, Record)
    assert (first.body, first.tags, first.keys) == (b"one", "paid", ["k1"])
    assert (second.body, second.tags, second.keys) == (b"", "paid", ["k2", "k3"])
    assert [r.properties["UNIQ_KEY"] for r in (first, second)] == [f"{STEM}FFFF", f"{STEM}0000"]


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"topic": ""}, IllegalMessage),
        ({"topic": "a/b"}, IllegalMessage),
        ({"tags": "a\1b"}, IllegalMessage),
        ({"queue_id": -2}, BadRequest),
        ({"queue_id": 65_536}, BadRequest),
        ({"keys": ["a"]}, BadRequest),
        ({"keys": ["a", "b c"]}, IllegalMessage),
        ({"keys": ["k" * 40_000, "a"]}, IllegalMessage),
        ({"bodies": [b"x", bytes(BODY_MAX + 1)]}, MessageTooLarge),
        ({"bodies": []}, BadRequest),
        ({"bodies": [bytes(BODY_MAX)] * 20_000}, MessageTooLarge),
    ],
)
def test_what_cannot_be_stored_is_refused(fields: dict[str, object], kind: type[MqError]) -> None:
    draft = draft_of(**{"bodies": [b"x", b"y"], **fields})  # type: ignore[arg-type]
    with pytest.raises(kind) as caught:
        encode_columns(draft, True, BODY_MAX)
    assert caught.value.hint
