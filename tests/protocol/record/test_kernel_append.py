"""The compiled way in against the plain one: it takes and writes the same, or leaves it to it."""

import struct
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.errors import MqError
from protocol.kernel import loader
from protocol.kernel.loader import Kernel, address
from protocol.names import check_topic_for_send
from protocol.record.encode import NewMessage, encode_batch, pack_record
from protocol.record.kernel_append import ANY_QUEUE_FLAG, CHECKED_FLAG, AppendGroup, AppendPart
from protocol.record.patch import AppendRules, PlainRow, check_plain, patch_plain
from tests.protocol.kernel.test_kernel import array
from tests.protocol.record.test_encode import messages
from tests.protocol.record.test_patch import BAD, BAD_IDS, GOOD, PIECES, RULES, STAMP
from tests.protocol.records import Draft, drafts, pack_draft


@pytest.fixture(scope="module")
def compiled() -> Kernel:
    found = loader.active()
    if found is None:
        pytest.skip("this installation has no compiled kernel")
    return found


def count_of(compiled: Kernel, frame: bytes) -> int:
    data = array(frame)
    return max(1, int(compiled.call("count", address(data), len(data), 0)))


def taken(
    compiled: Kernel, rules: AppendRules, *frames: bytes
) -> tuple[AppendGroup, list[list[AppendPart]] | None]:
    """The frames as requests of one group, with sizes and checksums that are theirs."""
    group = AppendGroup(compiled, rules)
    group.clear(len(frames), sum(map(len, frames)))
    for frame in frames:
        group.add(frame, count_of(compiled, frame), zlib.crc32(frame), b"", 0)
    return group, group.check()


def plain_rows(frame: bytes, rules: AppendRules) -> list[PlainRow] | None:
    try:
        return check_plain(frame, rules) or None
    except MqError:
        return None


def is_taken(compiled: Kernel, frame: bytes, rules: AppendRules) -> bool:
    """Names of topics are for the caller to judge."""
    _, parts = taken(compiled, rules, frame)
    if parts is None:
        return False
    try:
        for part in parts[0]:
            check_topic_for_send(part.topic.decode())
    except MqError:
        return False
    return True


@given(st.lists(messages(), min_size=1, max_size=8), st.integers(1, 8), st.booleans(), st.data())
def test_it_seals_the_bytes_that_the_plain_way_does(
    compiled: Kernel, items: list[NewMessage], cut: int, crc: bool, data: st.DataObject
) -> None:
    rules = RULES._replace(crc=crc)
    batches = [batch for batch in (items[:cut], items[cut:]) if batch]
    frames = [encode_batch(batch, crc).records for batch in batches]
    group, found = taken(compiled, rules, *frames)
    assert found is not None
    base = data.draw(st.integers(0, 2**62))
    expected, places = bytearray(b"".join(frames)), []
    start = 0
    for frame, parts in zip(frames, found, strict=True):
        rows = check_plain(frame, rules)
        queues = list(dict.fromkeys((row.topic, row.queue_id) for row in rows))
        assert [(part.topic.decode(), part.queue_id) for part in parts] == queues
        first = {queue: data.draw(st.integers(0, 2**62)) for queue in queues}
        given_id = {queue: data.draw(st.integers(0, 65_535)) for queue in queues}
        places += [(given_id[queue], first[queue]) for queue in queues]
        for row in rows:
            queue = row.topic, row.queue_id
            at = start + row.start
            placed = PlainRow(at, row.size, row.topic, given_id[queue], row.sys_flag)
            patch_plain(expected, placed, first[queue], base + at, STAMP, crc)
            first[queue] += 1
        assert sum(part.rows for part in parts) == len(rows)
        last_at = start + rows[-1].start
        start += len(frame)
    group.seal(places, base, STAMP)
    assert group.records == expected
    assert (group.rows, group.last_at) == (len(items), last_at)


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


@given(st.lists(st.lists(PIECES, max_size=40).map(b"".join), min_size=1, max_size=4))
def test_it_takes_and_refuses_the_same_properties(compiled: Kernel, many: list[bytes]) -> None:
    rules = RULES._replace(crc=False)
    frame = b"".join(pack_record(NewMessage("t", b"x", 0), properties) for properties in many)
    assert is_taken(compiled, frame, rules) == (plain_rows(frame, rules) is not None)


@pytest.mark.parametrize("raw", [row[1] for row in BAD], ids=BAD_IDS)
def test_it_takes_no_bad_record(compiled: Kernel, raw: bytes) -> None:
    assert is_taken(compiled, GOOD + GOOD, RULES)
    assert not is_taken(compiled, GOOD + raw + GOOD, RULES)


SIZES = struct.pack("<2I", len(GOOD), len(GOOD))


@pytest.mark.parametrize(
    ("count", "crc", "sizes", "is_good"),
    [
        (2, zlib.crc32(GOOD * 2), SIZES, True),
        (2, -1, b"", True),
        (1, -1, b"", False),
        (3, -1, b"", False),
        (2**40, -1, b"", False),
        (2, zlib.crc32(GOOD * 2) ^ 1, b"", False),
        (2, -1, SIZES[:-1] + b"\1", False),
    ],
)
def test_what_a_request_says_of_its_records_is_held_against_them(
    compiled: Kernel, count: int, crc: int, sizes: bytes, is_good: bool
) -> None:
    group = AppendGroup(compiled, RULES)
    group.clear(2, 4 * len(GOOD) + len(sizes))
    group.add(GOOD, 1, zlib.crc32(GOOD), b"", 0)
    group.add(GOOD * 2, count, crc, sizes, 0)
    assert (group.check() is not None) == is_good


def test_records_that_may_go_to_any_queue_are_one_part(compiled: Kernel) -> None:
    frame = encode_batch([NewMessage("t", b"x", queue) for queue in (3, -1, 3)], crc=True).records
    group = AppendGroup(compiled, RULES)
    for flags, parts in ((ANY_QUEUE_FLAG, [(-1, 3)]), (0, [(3, 2), (-1, 1)])):
        group.clear(1, len(frame))
        group.add(frame, 3, -1, b"", flags)
        found = group.check()
        assert found == [[AppendPart(b"t", queue_id, count) for queue_id, count in parts]]


def test_what_the_node_has_encoded_itself_is_not_checked_again(compiled: Kernel) -> None:
    raw = bytearray(GOOD)
    raw[88] ^= 1
    group = AppendGroup(compiled, RULES)
    for flags, is_good in ((0, False), (CHECKED_FLAG, True)):
        group.clear(1, len(raw))
        group.add(bytes(raw), 1, -1, b"", flags)
        assert (group.check() is not None) == is_good


def test_a_group_grows_with_what_it_is_given(compiled: Kernel) -> None:
    group = AppendGroup(compiled, AppendRules(2**22, crc=True))
    for requests, batch in ((1, [GOOD]), (600, [GOOD]), (3, [GOOD] * 5_000), (2, [GOOD])):
        frame = b"".join(batch)
        group.clear(requests, requests * len(frame))
        for _ in range(requests):
            group.add(frame, len(batch), -1, b"", 0)
        found = group.check()
        assert found == [[AppendPart(b"t", 0, len(batch))]] * requests
        group.seal([(0, 0)] * requests, 0, STAMP)
        assert (group.rows, len(group.records)) == (requests * len(batch), requests * len(frame))
