"""The compiled way in against the plain one: it takes and writes the same, or leaves it to it."""

import struct
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import BadRequest, MqError
from protocol.ids import Host
from protocol.kernel import loader
from protocol.kernel.loader import Kernel
from protocol.names import SHORT_TOPIC_CHARS_MAX
from protocol.record.append import AppendPart, Places, Put, Sealer
from protocol.record.codec import BORN_HOST_V6, STORE_HOST_V6
from protocol.record.encode import (
    FORBIDDEN_SYS_FLAGS,
    NewMessage,
    check_message,
    encode_batch,
    encode_message,
    pack_record,
)
from protocol.record.patch import AppendRules, PlainRow, SentRecords, check_plain, patch_plain
from protocol.record.properties import PROPERTIES_BYTES_MAX
from tests.protocol.kernel.test_kernel import array
from tests.protocol.record.test_encode import messages
from tests.protocol.record.test_patch import BAD, BAD_IDS, GOOD, PIECES, RULES, STAMP
from tests.protocol.records import Draft, drafts, pack_draft
from tests.support.kernel import using

OFFSETS = st.integers(0, 2**62)
TIME = STAMP.store_timestamp
SIZES = struct.pack("<2I", len(GOOD), len(GOOD))
CLAIMS = [
    (2, zlib.crc32(GOOD * 2), SIZES, True),
    (2, None, b"", True),
    (1, None, b"", False),
    (3, None, b"", False),
    (2**40, None, b"", False),
    (2, zlib.crc32(GOOD * 2) ^ 1, b"", False),
    (2, None, SIZES[:-1] + b"\1", False),
    (2, None, SIZES[:4], False),
]


@pytest.fixture(scope="module")
def compiled() -> Kernel:
    found = loader.kernel
    if found is None:
        pytest.skip("this installation has no compiled kernel")
    return found


def sent(compiled: Kernel, frame: bytes) -> SentRecords:
    """The frame as a request, with a count and a checksum that are its own."""
    data = array(frame)
    count = max(1, int(compiled.call("count", data, len(data), 0)))
    return SentRecords(frame, count, crc=zlib.crc32(frame))


def sealers(rules: AppendRules) -> tuple[Sealer, Sealer]:
    """A compiled one and a plain one."""
    compiled = Sealer(rules, STAMP.store_host)
    with using(None):
        return compiled, Sealer(rules, STAMP.store_host)


def plain_rows(frame: bytes, rules: AppendRules) -> list[PlainRow] | None:
    try:
        return check_plain(frame, rules) or None
    except MqError:
        return None


def is_taken(compiled: Kernel, frame: bytes, rules: AppendRules) -> bool:
    return Sealer(rules).check_compiled(sent(compiled, frame)) is not None


@given(st.lists(messages(), min_size=1, max_size=8), st.integers(1, 8), st.booleans(), st.data())
def test_it_seals_the_bytes_that_the_plain_way_does(
    compiled: Kernel, items: list[NewMessage], cut: int, crc: bool, data: st.DataObject
) -> None:
    rules, base = RULES._replace(crc=crc), data.draw(OFFSETS)
    frames = [encode_batch(some, crc).records for some in (items[:cut], items[cut:]) if some]
    pair = sealers(rules)
    for sealer in pair:
        sealer.begin(sum(map(len, frames)), base, TIME)
    expected = bytearray(b"".join(frames))
    for frame in frames:
        parts = [sealer.check(sent(compiled, frame)) for sealer in pair]
        assert parts[0] == parts[1]
        rows = check_plain(frame, rules)
        queues = list(dict.fromkeys((row.topic, row.queue_id) for row in rows))
        assert [part[:2] for part in parts[0]] == queues
        places: Places = [(data.draw(st.integers(0, 65_535)), data.draw(OFFSETS)) for _ in queues]
        start, following = pair[0].end, dict(zip(queues, places, strict=True))
        for row in rows:
            queue_id, offset = following[row.topic, row.queue_id]
            following[row.topic, row.queue_id] = queue_id, offset + 1
            at = start + row.start
            placed = PlainRow(at, row.size, row.topic, queue_id, row.sys_flag)
            patch_plain(expected, placed, offset, base + at, STAMP, crc)
        for sealer in pair:
            sealer.seal(sent(compiled, frame), places)
            assert sealer.records == expected[: start + len(frame)]
            assert sealer.last_at == start + rows[-1].start
    assert pair[0].rows == pair[1].rows == len(items)


@given(st.lists(drafts(), min_size=1, max_size=3), st.booleans())
def test_it_takes_and_refuses_the_same_records(
    compiled: Kernel, items: list[Draft], crc: bool
) -> None:
    frame = b"".join(pack_draft(replace(draft, topic=draft.topic or b"t")) for draft in items)
    rules = AppendRules(2**22, crc)
    assert is_taken(compiled, frame, rules) == (plain_rows(frame, rules) is not None)


@given(st.lists(messages(), min_size=1, max_size=3), st.data())
def test_it_takes_and_refuses_the_same_damaged_batches(
    compiled: Kernel, items: list[NewMessage], data: st.DataObject
) -> None:
    frame = bytearray(encode_batch(items, crc=True).records)
    for _ in range(data.draw(st.integers(1, 3))):
        frame[data.draw(st.integers(0, len(frame) - 1))] = data.draw(st.integers(0, 255))
    raw = bytes(frame[: data.draw(st.one_of(st.just(len(frame)), st.integers(1, len(frame))))])
    assert is_taken(compiled, raw, RULES) == (plain_rows(raw, RULES) is not None)


@given(st.binary(max_size=300))
def test_it_takes_and_refuses_the_same_of_any_bytes_at_all(compiled: Kernel, raw: bytes) -> None:
    assert is_taken(compiled, raw, RULES) == (plain_rows(raw, RULES) is not None)


@given(st.lists(st.lists(PIECES, max_size=40).map(b"".join), min_size=1, max_size=4))
def test_it_takes_and_refuses_the_same_properties(compiled: Kernel, many: list[bytes]) -> None:
    rules = RULES._replace(crc=False)
    frame = b"".join(pack_record(NewMessage("t", b"x", 0), properties) for properties in many)
    assert is_taken(compiled, frame, rules) == (plain_rows(frame, rules) is not None)


@pytest.mark.parametrize(("raw", "kind"), [row[1:] for row in BAD], ids=BAD_IDS)
def test_a_bad_record_is_refused_in_the_same_words(
    compiled: Kernel, raw: bytes, kind: type[MqError]
) -> None:
    assert is_taken(compiled, GOOD + GOOD, RULES)
    frame, words = GOOD + raw + GOOD, []
    assert not is_taken(compiled, frame, RULES)
    for sealer in sealers(RULES):
        with pytest.raises(kind) as caught:
            sealer.check(SentRecords(frame, 3))
        words.append((caught.value.reason, caught.value.hint))
    assert words[0] == words[1]


@pytest.mark.parametrize(("count", "crc", "sizes", "is_good"), CLAIMS)
def test_what_a_request_says_of_its_records_is_held_against_them(
    compiled: Kernel, count: int, crc: int | None, sizes: bytes, is_good: bool
) -> None:
    for records in (GOOD * 2, memoryview(GOOD * 2)):
        request = SentRecords(records, count, sizes, crc=crc)
        for sealer in sealers(RULES):
            sealer.begin(len(records), 0, TIME)
            assert sealer.run(request, b"t", 0, 7) == (is_good and sealer.is_compiled)
            if is_good:
                assert sealer.check(request) == [AppendPart("t", 0, 2)]
            else:
                with pytest.raises(BadRequest):
                    sealer.check(request)
        assert (Sealer(RULES).check_compiled(request) is not None) == is_good


def test_records_that_may_go_to_any_queue_are_one_part(compiled: Kernel) -> None:
    frame = encode_batch([NewMessage("t", b"x", queue) for queue in (3, -1, 3)], crc=True).records
    for any_queue, parts in ((True, [(-1, 3)]), (False, [(3, 2), (-1, 1)])):
        for sealer in sealers(RULES):
            found = sealer.check(SentRecords(frame, 3, any_queue=any_queue))
            assert found == [AppendPart("t", queue_id, count) for queue_id, count in parts]


def test_the_buffer_grows_with_what_it_is_given(compiled: Kernel) -> None:
    for sealer in sealers(AppendRules(2**22, crc=True)):
        for requests, count in (
            (1, 1),
            (600, 1),
            (3, 5_000 if sealer.is_compiled else 300),
            (2, 1),
        ):
            frame = GOOD * count
            sealer.begin(requests * len(frame), 0, TIME)
            for number in range(requests):
                request = sent(compiled, frame)
                if number % 2 == 0 and sealer.run(request, b"t", 0, 0):
                    continue
                assert sealer.check(request) == [AppendPart("t", 0, count)]
                sealer.seal(request, [(0, 0)])
            assert (sealer.rows, len(sealer.records)) == (requests * count, requests * len(frame))


# -- a request of one queue, in one pass ----------------------------------------------------------


def sealed_plainly(
    frame: bytes, rules: AppendRules, place: tuple[str, int, int], base: int
) -> bytes | None:
    """None where the plain way refuses a record, or one is of another queue."""
    topic, queue_id, offset = place
    rows = plain_rows(frame, rules)
    if rows is None or any((row.topic, row.queue_id) != (topic, queue_id) for row in rows):
        return None
    expected = bytearray(frame)
    for number, row in enumerate(rows):
        patch_plain(expected, row, offset + number, base + row.start, STAMP, rules.crc)
    return bytes(expected)


@given(
    st.lists(messages(), min_size=1, max_size=6), st.booleans(), OFFSETS, OFFSETS,
    st.one_of(st.none(), st.tuples(st.integers(0), st.integers(0, 255))),
)  # fmt: skip
def test_a_run_is_taken_and_sealed_as_the_plain_way_does(
    compiled: Kernel,
    items: list[NewMessage],
    crc: bool,
    offset: int,
    base: int,
    damage: tuple[int, int] | None,
) -> None:
    rules, first = RULES._replace(crc=crc), items[0]
    same = [replace(item, topic=first.topic, queue_id=5) for item in items]
    frame = bytearray(encode_batch(same, crc).records)
    if damage is not None:
        frame[damage[0] % len(frame)] = damage[1]
    raw, place = bytes(frame), (first.topic, 5, offset)
    expected = sealed_plainly(raw, rules, place, base + 2 * len(raw))
    sealer, topic = Sealer(rules, STAMP.store_host), first.topic.encode()
    sealer.begin(3 * len(raw), base, TIME)
    taken = [sealer.run(sent(compiled, raw), topic, 5, offset) for _ in range(3)]
    assert taken == [expected is not None] * 3
    if expected is not None:
        assert sealer.records[2 * len(raw) :] == expected
        last = plain_rows(raw, rules)
        assert last is not None and sealer.last_at == 2 * len(raw) + last[-1].start


@pytest.mark.parametrize("raw", [row[1] for row in BAD], ids=BAD_IDS)
def test_a_run_with_a_bad_record_is_not_taken(compiled: Kernel, raw: bytes) -> None:
    sealer = Sealer(RULES)
    sealer.begin(8 * len(GOOD) + len(raw), 0, TIME)
    assert sealer.run(sent(compiled, GOOD + GOOD), b"t", 0, 0)
    assert not sealer.run(sent(compiled, GOOD + raw + GOOD), b"t", 0, 0)
    assert (sealer.rows, len(sealer.records)) == (2, 2 * len(GOOD))


def test_records_of_another_queue_or_topic_are_no_run(compiled: Kernel) -> None:
    sealer = Sealer(RULES)
    for message, any_queue, is_good in (
        (NewMessage("t", b"x", 3), False, True),
        (NewMessage("t", b"x", 2), False, False),
        (NewMessage("t", b"x", 2), True, True),
        (NewMessage("t", b"x", -1), True, True),
        (NewMessage("u", b"x", 3), False, False),
        (NewMessage("tt", b"x", 3), True, False),
    ):
        frame = encode_batch([NewMessage("t", b"", 3), message], crc=True).records
        sealer.begin(len(frame), 0, TIME)
        request = replace(sent(compiled, frame), any_queue=any_queue)
        assert sealer.run(request, b"t", 3, 0) == is_good


# -- a message of the node's own ------------------------------------------------------------------


@given(messages(), st.booleans(), st.integers(0, 65_535), OFFSETS, OFFSETS)
def test_a_put_makes_the_bytes_that_the_plain_way_does(
    compiled: Kernel, message: NewMessage, crc: bool, queue_id: int, offset: int, base: int
) -> None:
    rules, topic = RULES._replace(crc=crc), message.topic.encode()
    expected = bytearray(encode_message(message, crc))
    row = PlainRow(0, len(expected), message.topic, queue_id, 0)
    put = Put(
        message.topic,
        message.body,
        message.queue_id,
        check_message(message, rules.crc, rules.max_message_bytes),
        message.born_timestamp,
        message.born_host,
        message.flag,
        message.sys_flag & ~(BORN_HOST_V6 | STORE_HOST_V6),
        message.reconsume_times,
    )
    sealer = Sealer(rules, STAMP.store_host)
    assert sealer.put(put, topic, queue_id, offset, base, TIME) is None, "it has no room yet"
    sealer.begin(len(expected), 0, TIME)
    made = sealer.put(put, topic, queue_id, offset, base, TIME)
    if message.born_host.is_v6 or len(message.topic) > SHORT_TOPIC_CHARS_MAX:
        assert made is None
        return
    patch_plain(expected, row, offset, base, STAMP, crc)
    assert made is not None and bytes(made) == expected


@pytest.mark.parametrize(
    "put",
    [
        Put("t", bytes(2**20), 0),
        Put("t", b"", 0, bytes(PROPERTIES_BYTES_MAX - 10)),
        Put("t" * 128, b"", 0),
        Put("", b"", 0),
        Put("t", b"", 0, born_host=Host(bytes(16), 1)),
        Put("t", b"", 0, born_host=Host(bytes(4), 2**31)),
        Put("t", b"", 0, flag=2**31),
        Put("t", b"", 0, born_timestamp=2**63),
        *(
            Put("t", b"", 0, sys_flag=1 << bit)
            for bit in range(8)
            if FORBIDDEN_SYS_FLAGS >> bit & 1
        ),
        Put("t", b"", 0, sys_flag=BORN_HOST_V6),
    ],
    ids=lambda put: (
        f"{put.topic[:3]}-{put.flag}-{put.sys_flag}-{put.born_host.port}-{len(put.body)}"
    ),
)
def test_what_fits_no_common_record_is_left_to_others(compiled: Kernel, put: Put) -> None:
    sealer = Sealer(RULES)
    sealer.begin(1, 0, TIME)
    assert sealer.put(put, put.topic.encode(), 0, 0, 0, TIME) is None
    assert sealer.put(Put("t", b"x", 0), b"t", 0, 0, 0, TIME) is not None
