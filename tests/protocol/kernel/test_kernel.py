"""The compiled kernel against the plain way: the same columns, the same refusals."""

import os
import subprocess
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hatch_build
from protocol.derived.dispatch_request import look_up
from protocol.kernel import loader
from protocol.kernel.loader import (
    CHECK_PLACE,
    CRC_FOLDING,
    CRC_TABLES,
    CRC_WIDE_FOLDING,
    SEALED,
    VERIFY,
    Bytes,
    Ints,
    Kernel,
)
from protocol.record.columns import RecordColumns, gather_verified, group_topics, scan
from protocol.record.java_hash import hash_pieces
from protocol.record.properties import decode_raw_properties
from tests.protocol.records import PROPERTIES, Draft, drafts, pack_draft, pack_log
from tests.support.golden import GetStore
from tests.support.kernel import using

NAMES = [name for name in RecordColumns.__slots__ if name != "data"]
SOURCE = Path(loader.__file__).with_name("kernel.c")
MINE = f"KERNEL_ABI {loader.ABI}"
REAL_BYTES = 2 << 20
AGAIN = "protocol/kernel/kernel.c has changed since: install again (make setup, pip install -e .)"


def skip_without_kernel() -> None:
    if not Path(loader.path()).exists():
        pytest.skip("this installation has no compiled kernel")


@pytest.fixture(scope="module", params=[CRC_WIDE_FOLDING, CRC_FOLDING, CRC_TABLES])
def compiled(request: pytest.FixtureRequest) -> Iterator[Kernel]:
    """The loader, with each way to compute checksums that this machine has."""
    skip_without_kernel()
    found = Kernel(loader.path(), crc_best=request.param)
    if found.crc_way != request.param:
        Kernel(loader.path())
        pytest.skip("this processor lacks the instructions")
    assert found.source == hatch_build.digest_of(Path(loader.__file__).parent), AGAIN
    yield found
    Kernel(loader.path())


def array(data: bytes) -> Bytes:
    return np.frombuffer(data, np.uint8)


def assert_scans_agree(compiled: Kernel, data: bytes, base: int | None, position: int = 0) -> None:
    for verify, sealed in ((True, True), (True, False), (False, True)):
        with using(None):
            expected = scan(data, base, position, verify, sealed)
        flags = VERIFY * verify | SEALED * sealed | CHECK_PLACE * (base is not None)
        block, found_end = compiled.scan(array(data), position, base or 0, flags)
        assert (found_end, block.shape[1]) == (expected.end, len(expected.columns))
        for name, values in zip(NAMES, block, strict=True):
            assert values.tolist() == getattr(expected.columns, name).tolist(), name


@given(st.lists(drafts(), max_size=5), st.integers(0, 2**62), st.integers(0, 9), st.data())
def test_it_reads_damaged_records_as_the_plain_way_does(
    compiled: Kernel, items: list[Draft], base: int, lead: int, data: st.DataObject
) -> None:
    log = bytearray(bytes(lead) + pack_log(items, base + lead))
    for _ in range(data.draw(st.integers(0, 3))):
        if len(log):
            place = data.draw(st.integers(0, len(log) - 1))
            log[place] = data.draw(st.sampled_from([0, 1, 2, 0x7F, 0x80, 0xFF, log[place] ^ 4]))
    cut = data.draw(st.one_of(st.just(len(log)), st.integers(lead, len(log))))
    assert_scans_agree(compiled, bytes(log[:cut]), base, lead)
    assert_scans_agree(compiled, bytes(log[:cut]), None, lead)


@given(st.binary(max_size=300), st.integers(0, 20))
def test_it_reads_any_bytes_at_all_as_the_plain_way_does(
    compiled: Kernel, data: bytes, position: int
) -> None:
    assert_scans_agree(compiled, data, 0, min(position, len(data)))


def test_every_flipped_bit_ends_both_scans_at_the_same_place(compiled: Kernel) -> None:
    sealed = Draft(topic=b"T", body=b"body", properties=b"TAGS\1a\2", crc=True)
    plain = Draft(topic="名".encode(), body=b"b" * 8, properties=b"KEYS\1a b\2", v2=True)
    log = bytearray(pack_log([sealed, plain]))
    for bit in range(len(log) * 8):
        log[bit // 8] ^= 1 << bit % 8
        assert_scans_agree(compiled, bytes(log), 0)
        log[bit // 8] ^= 1 << bit % 8


@pytest.mark.parametrize("name", ["default-sizes", "mixed-kinds", "small-killed", "crc32-property"])
def test_it_reads_real_logs_as_the_plain_way_does(
    compiled: Kernel, golden: GetStore, name: str
) -> None:
    for path in sorted((golden(name) / "commitlog").iterdir()):
        with path.open("rb") as file:
            data = file.read(REAL_BYTES)
        assert_scans_agree(compiled, data, int(path.name))


def test_no_way_to_compute_checksums_slows_down_the_next_one() -> None:
    """Wide registers that stay in use cost an Intel processor ten times as much for each record."""
    skip_without_kernel()
    log = array(pack_log([Draft(body=bytes(300), properties=b"TAGS\1a\2", crc=True)] * 1_000))
    least: dict[int, float] = {}
    try:
        for way in (CRC_FOLDING, CRC_WIDE_FOLDING):
            kernel = Kernel(loader.path(), crc_best=way)
            if kernel.crc_way != way:
                pytest.skip("this processor lacks the instructions")
            for _ in range(30):
                begun = time.thread_time()
                columns, _ = kernel.scan(log, 0, 0, VERIFY | SEALED)
                least[way] = min(least.get(way, 1.0), time.thread_time() - begun)
                assert columns.shape[1] == 1_000
    finally:
        Kernel(loader.path())
    assert least[CRC_WIDE_FOLDING] < 2 * least[CRC_FOLDING]


@given(st.lists(drafts(), min_size=1, max_size=5), st.data())
def test_it_gathers_as_the_plain_way_does(
    compiled: Kernel, items: list[Draft], data: st.DataObject
) -> None:
    raw = [pack_draft(draft, 1000 * row) for row, draft in enumerate(items)]
    log = bytearray(b"".join(raw))
    size = np.array([len(part) for part in raw])
    start, place = np.cumsum(size) - size, 1000 * np.arange(len(raw))
    for column in (start, size, place):
        if data.draw(st.booleans()):
            row = data.draw(st.integers(0, len(raw) - 1))
            column[row] += data.draw(st.one_of(st.integers(-99, 99), st.integers(-(2**40), 2**40)))
    for _ in range(data.draw(st.integers(0, 2))):
        log[data.draw(st.integers(0, len(log) - 1))] ^= data.draw(st.integers(1, 255))
    buffer = array(bytes(log))
    with using(None):
        expected, good = gather_verified(buffer, start, size, place)
    block, found = compiled.gather(buffer, start, size, place)
    assert found.tolist() == good.tolist()
    for name, values in zip(NAMES, block, strict=True):
        assert values[found].tolist() == getattr(expected, name)[good].tolist(), name


def ragged(parts: list[bytes]) -> tuple[Bytes, Ints, Ints]:
    length = np.array([len(part) for part in parts], np.int64)
    return array(b"".join(parts) + b"\2"), np.cumsum(length) - length, length


@given(st.lists(st.one_of(PROPERTIES, st.binary(max_size=30)), max_size=6))
def test_it_finds_properties_as_the_plain_way_does(compiled: Kernel, parts: list[bytes]) -> None:
    data, start, length = ragged(parts)
    with using(None):
        expected = look_up(data, start, length)
    found = compiled.find_properties(data, start, length)
    for number, name in enumerate((b"KEYS", b"TAGS", b"UNIQ_KEY")):
        pieces = expected[name]
        assert found[2 * number + 1].tolist() == pieces.length.tolist()
        there = pieces.length > 0
        assert found[2 * number][there].tolist() == pieces.start[there].tolist()
    many = compiled.pairs(data, start, length)
    assert many is not None
    places, counts = many
    rows = np.split(places, np.cumsum(counts)[:-1], axis=1) if len(parts) else []
    for part, row in zip(parts, rows, strict=True):
        named = [(data[a:b].tobytes(), data[b + 1 : c].tobytes()) for a, b, c in row.T.tolist()]
        assert dict(named) == decode_raw_properties(part)
        assert len(dict(named)) == len(named)
        assert row[0].tolist() == sorted(row[0].tolist())


def test_a_record_with_very_many_properties_is_left_to_python(compiled: Kernel) -> None:
    data, start, length = ragged([b"".join(b"n%d\1v\2" % number for number in range(100))])
    assert compiled.pairs(data, start, length) is None


@given(st.lists(st.one_of(st.text(max_size=9).map(str.encode), st.binary(max_size=4)), max_size=9))
def test_pieces_are_joined_numbered_and_hashed(compiled: Kernel, parts: list[bytes]) -> None:
    data, start, length = ragged(parts)
    arrow, offsets = compiled.join_arrow(data, start[::-1], length[::-1])
    joined = b"".join(reversed(parts))
    assert (arrow.tobytes(), offsets.tolist()) == (joined, [0, *np.cumsum(length[::-1])])
    ids, first = compiled.group(data, start, length)
    seen: dict[bytes, int] = {}
    assert ids.tolist() == [seen.setdefault(part, len(seen)) for part in parts]
    assert [parts[row] for row in first] == list(seen)
    hashes = compiled.java_hash(data, start, length)
    with using(None):
        assert hashes.tolist() == hash_pieces(data, start, length).tolist()


@given(st.lists(drafts(), max_size=5))
def test_topics_are_numbered_as_by_the_plain_way(compiled: Kernel, items: list[Draft]) -> None:
    buffer = array(pack_log(items))
    columns = RecordColumns(buffer, *compiled.scan(buffer, 0, 0, VERIFY | SEALED)[0])
    with using(None):
        topics, ids = group_topics(columns)
    found, first = compiled.group(buffer, columns.topic_start, columns.topic_length)
    assert found.tolist() == ids.tolist()
    assert [items[row].topic.decode() for row in first] == topics


@pytest.mark.parametrize("name", ["join_arrow", "java_hash", "group", "find_properties"])
@pytest.mark.parametrize(("start", "length"), [(5, 4), (-1, 1), (9, 0), (2**62, 1), (0, 2**33)])
def test_a_piece_outside_the_buffer_is_refused(
    compiled: Kernel, name: str, start: int, length: int
) -> None:
    function: Callable[..., object] = getattr(compiled, name)
    with pytest.raises((IndexError, MemoryError)):
        function(np.zeros(8, np.uint8), np.array([start]), np.array([length]))


@given(st.lists(st.tuples(st.integers(0, 9000), st.integers(0, 400)), max_size=300))
def test_pieces_of_a_file_are_its_bytes(compiled: Kernel, places: list[tuple[int, int]]) -> None:
    data = SOURCE.read_bytes()
    wanted = [data[start : start + count] for start, count in sorted(places)]
    with SOURCE.open("rb") as file:
        start, count = np.array(sorted(places), np.int64).reshape(-1, 2).T
        found, whole = compiled.read_pieces(file.fileno(), start, count)
    assert (found.tobytes(), whole) == (b"".join(wanted), len(places))


def test_a_file_that_ends_before_a_piece_does_gives_no_piece(compiled: Kernel) -> None:
    end = SOURCE.stat().st_size
    with SOURCE.open("rb") as file:
        for places in ([(0, 3), (end - 1, 2)], [(0, 3), (2**40, 1)], [(0, 3), (2**62, 1)]):
            start, count = np.array(places).T
            assert compiled.read_pieces(file.fileno(), start, count)[1] < 2
    assert compiled.read_pieces(-1, np.array([0]), np.array([1]))[1] == 0


def test_checksums_are_zlibs_at_any_length_and_address(compiled: Kernel) -> None:
    data = np.random.default_rng(1).integers(0, 256, 2000, np.uint8)
    for size in [*range(400), 1023, 1024, 1025, 1990]:
        for lead in (0, 1, 7):
            piece = data[lead : lead + size]
            assert compiled.call("crc32", piece, size) == zlib.crc32(piece.data), (size, lead)


def test_its_columns_are_those_of_the_class(compiled: Kernel) -> None:
    assert compiled.columns == len(NAMES)
    text = SOURCE.read_text()
    listed = text[text.index("enum column {") : text.index("COLUMNS\n")]
    assert [word.strip(" ,").lower() for word in listed.split("\n")[1:-1]] == NAMES


def test_the_environment_turns_it_off() -> None:
    command = [sys.executable, "-c", "from protocol.kernel import loader; print(loader.describe())"]
    env = {**os.environ, loader.SWITCH: "off"}
    root = SOURCE.parents[1]
    done = subprocess.run(command, env=env, cwd=root, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "numpy"


@pytest.fixture
def other_version(tmp_path: Path) -> str:
    for source in SOURCE.parent.glob("kernel*.c"):
        text = source.read_text()
        (tmp_path / source.name).write_text(text.replace(MINE, f"KERNEL_ABI {loader.ABI + 1}"))
    source = tmp_path / SOURCE.name
    why = hatch_build.compile_kernel(source, tmp_path / "kernel.so", ("-shared", "-fPIC"))
    if "no C compiler" in why:
        pytest.skip(why)
    assert why == ""
    return str(tmp_path / "kernel.so")


def test_a_library_of_another_version_is_refused(other_version: str) -> None:
    why = f"ABI {loader.ABI + 1}, not {loader.ABI}"
    with pytest.raises(loader.KernelMismatchError, match=why):
        Kernel(other_version)
    found, told = loader.load(other_version)
    assert found is None
    assert told.endswith(why)


@pytest.mark.parametrize("content", [b"", b"no library", b"\x7fELF" + bytes(60)])
def test_a_file_that_is_no_library_is_told_of_and_one_that_is_absent_is_not(
    tmp_path: Path, content: bytes
) -> None:
    path = tmp_path / "kernel.so"
    assert loader.load(str(path)) == (None, "")
    path.write_bytes(content)
    found, why = loader.load(str(path))
    assert found is None
    assert str(path) in why


def test_a_library_that_does_not_fit_is_no_concern_of_who_turned_it_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kernel.so").touch()
    monkeypatch.setenv(loader.SWITCH, "off")
    assert loader.load(str(tmp_path / "kernel.so")) == (None, "")
