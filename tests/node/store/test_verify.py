"""What `verify` finds: nothing in a good store, each kind of damage by its name and place."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from node.store.checkpoints import EpochLine, WorkerCheckpoint, save_epochs, save_progress
from node.store.opening import open_store
from node.store.verify.findings import ALIKE_MAX, KINDS, Finding, Findings
from node.store.verify.verify import VerifyReport, verify
from protocol.derived.file_layouts import decode_checkpoint, encode_checkpoint
from protocol.errors import NotAStore
from tests.support.damaged_store import make_store
from tests.support.golden import GetStore
from tests.workers.living_log import SETTINGS, LivingLog
from workers.rebuild import rebuild

SEGMENT = "commitlog/00000000000000000000"
TOPIC = "S533_orders"


def patch(path: Path, position: int, data: bytes) -> None:
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def queue_file(root: Path) -> Path:
    return root / "consumequeue" / TOPIC / "0" / ("0" * 20)


def index_file(root: Path, number: int = 0) -> Path:
    return sorted((root / "index").iterdir())[number]


def entry_at(root: Path, entry: int) -> int:
    assert index_file(root).stat().st_size == 40 + 4 * 500 + 20 * 2000
    return 40 + 4 * 500 + 20 * entry


def unit(root: Path, number: int) -> tuple[int, int]:
    with open_store(root) as store:
        reader = store.queue(TOPIC, 0)
        assert reader is not None
        found = reader.unit(number)
        assert found is not None
        return found.physical_offset, found.size


def flip_body(root: Path) -> None:
    offset, size = unit(root, 3)
    patch(root / SEGMENT, offset + size // 2, b"\xff\xfe\xfd")


def change_magic(root: Path) -> None:
    patch(root / SEGMENT, unit(root, 3)[0] + 4, b"\0\1\2\3")


def change_size(root: Path) -> None:
    patch(root / SEGMENT, unit(root, 3)[0], (100).to_bytes(4, "big"))


def change_place(root: Path) -> None:
    patch(root / SEGMENT, unit(root, 3)[0] + 28, (77).to_bytes(8, "big"))


def change_a_blank(root: Path) -> None:
    with open_store(root) as store:
        ends = (columns.physical_offset + columns.size for columns in store.log.columns(0, 262_144))
        last = max(int(end[-1]) for end in ends)
    patch(root / SEGMENT, last, (4096).to_bytes(4, "big"))


def wipe_the_rest_of_a_segment(root: Path) -> None:
    offset, _ = unit(root, 3)
    patch(root / SEGMENT, offset, bytes(262_144 - offset))


def tear_the_tail(root: Path) -> None:
    with open_store(root) as store:
        end = store.log.end
    patch(root / f"commitlog/{end - end % 262_144:020d}", end % 262_144, b"\0\0\1\0torn")


def remove_a_segment(root: Path) -> None:
    (root / f"commitlog/{262_144:020d}").unlink()


def shorten_a_segment(root: Path) -> None:
    os.truncate(root / f"commitlog/{262_144:020d}", 100)


def lay_down_a_stranger(root: Path) -> None:
    (root / "commitlog" / "x.tmp").touch()


def lay_down_a_stranger_among_queues(root: Path) -> None:
    (root / "consumequeue" / TOPIC / "notes").touch()


def change_a_unit(root: Path) -> None:
    patch(queue_file(root), 20 * 5 + 12, b"\1")


def add_a_unit(root: Path) -> None:
    with open_store(root) as store:
        reader = store.queue(TOPIC, 0)
        assert reader is not None
        end = reader.max_offset
    folder = queue_file(root).parent
    path = folder / f"{end * 20 - end * 20 % 4000:020d}"
    data = (900).to_bytes(8, "big") + (120).to_bytes(4, "big") + bytes(8)
    patch(path, end * 20 % 4000, data)


def remove_a_queue(root: Path) -> None:
    shutil.rmtree(queue_file(root).parent)


def change_an_entrys_hash(root: Path) -> None:
    patch(index_file(root), entry_at(root, 50) + 2, b"\x12")


def change_an_entrys_place(root: Path) -> None:
    patch(index_file(root), entry_at(root, 50) + 4, (17).to_bytes(8, "big"))


def change_an_entrys_chain(root: Path) -> None:
    patch(index_file(root), entry_at(root, 1500) + 16, (1).to_bytes(4, "big"))


def change_the_first_entrys_time(root: Path) -> None:
    patch(index_file(root), entry_at(root, 1) + 12, (9).to_bytes(4, "big"))


def raise_a_count(root: Path) -> None:
    patch(index_file(root), 36, (1 << 20).to_bytes(4, "big"))


def change_a_header(root: Path) -> None:
    patch(index_file(root), 16, (123).to_bytes(8, "big"))


def remove_an_index_file(root: Path) -> None:
    index_file(root, 2).unlink()


def move_the_checkpoint_ahead(root: Path) -> None:
    path = root / "checkpoint"
    checkpoint = decode_checkpoint(path.read_bytes())
    path.write_bytes(encode_checkpoint(checkpoint._replace(logics_physical_offset=1 << 40)))


def remove_the_first_file_of_a_queue(root: Path) -> None:
    queue_file(root).unlink()


QUEUE = f"consumequeue/{TOPIC}/0"
INDEX = "index/20261121080724266"


class Planted(NamedTuple):
    """Damage, the finding that names it, and those that come with it and name the same place."""

    damage: Callable[[Path], None]
    kind: str
    file: str
    offset: int
    too: frozenset[str] = frozenset()


DAMAGE = [
    Planted(flip_body, "bad_crc", SEGMENT, 14_900),
    Planted(change_magic, "bad_magic", SEGMENT, 14_900),
    Planted(change_size, "bad_size", SEGMENT, 14_900),
    Planted(change_place, "wrong_place", SEGMENT, 14_900),
    Planted(change_a_blank, "bad_size", SEGMENT, 262_136),
    Planted(wipe_the_rest_of_a_segment, "gap", SEGMENT, 14_900),
    Planted(tear_the_tail, "torn_tail", "commitlog/00000000000003145728", 3_162_710),
    Planted(remove_a_segment, "missing_segment", "commitlog/00000000000000524288", 524_288),
    Planted(shorten_a_segment, "wrong_length", "commitlog/00000000000000262144", 262_144),
    Planted(lay_down_a_stranger, "foreign_file", "commitlog/x.tmp", 0),
    Planted(
        lay_down_a_stranger_among_queues, "foreign_file", f"consumequeue/{TOPIC}/notes", 0
    ),
    Planted(change_a_unit, "unit_mismatch", f"{QUEUE}/{0:020d}", 35_356),
    Planted(add_a_unit, "unit_dangling", f"{QUEUE}/{8_000:020d}", 900),
    Planted(remove_a_queue, "unit_missing", QUEUE, 7_193),
    Planted(remove_the_first_file_of_a_queue, "unit_missing", QUEUE, 7_193),
    Planted(
        change_an_entrys_hash, "entry_mismatch", INDEX, 50,
        frozenset({"chain_broken", "entry_missing"}),
    ),
    Planted(
        change_an_entrys_place, "entry_dangling", INDEX, 50, frozenset({"entry_missing"})
    ),
    Planted(change_the_first_entrys_time, "entry_mismatch", INDEX, 1),
    Planted(change_an_entrys_chain, "chain_broken", INDEX, 1_500),
    Planted(change_a_header, "header_mismatch", INDEX, 0),
    Planted(raise_a_count, "header_mismatch", INDEX, 0),
    Planted(remove_an_index_file, "entry_missing", "index", 1_716_293),
    Planted(move_the_checkpoint_ahead, "checkpoint_ahead", "checkpoint", 1 << 40),
]  # fmt: skip
SEEN_WITHOUT_DEEP = {
    *("bad_magic", "bad_size", "wrong_place", "gap", "torn_tail", "missing_segment"),
    *("wrong_length", "foreign_file", "header_mismatch", "checkpoint_ahead"),
}


def errors(report: VerifyReport) -> set[str]:
    return {finding.kind for finding in report.findings if finding.severity == "error"}


def test_every_kind_of_finding_has_its_damage_here() -> None:
    assert {planted.kind for planted in DAMAGE} == KINDS


@pytest.mark.parametrize("planted", DAMAGE, ids=[planted.damage.__name__ for planted in DAMAGE])
def test_damage_is_found_by_its_name_and_place_and_as_nothing_else(
    golden_copy: GetStore, planted: Planted
) -> None:
    root = golden_copy("small-clean-533")
    planted.damage(root)
    report = verify(root, deep=True)
    first = next(finding for finding in report.findings if finding.kind == planted.kind)
    expected = ("error", str(root / planted.file), planted.offset)
    assert (first.severity, first.file, first.offset) == expected
    assert {finding.kind for finding in report.findings} == {planted.kind, *planted.too}
    assert not report.ok
    if planted.kind in SEEN_WITHOUT_DEEP:
        assert planted.kind in errors(verify(root))


def test_one_damaged_record_is_one_place_and_the_rest_is_counted(golden_copy: GetStore) -> None:
    root = golden_copy("small-clean-533")
    whole = verify(root, deep=True)
    flip_body(root)
    offset, size = unit(root, 3)
    report = verify(root, deep=True)
    found = next(finding for finding in report.findings if finding.kind == "bad_crc")
    assert (found.offset, found.file) == (offset, str(root / SEGMENT))
    assert str(offset + size) in found.detail
    assert report.records == whole.records - 1
    assert errors(report) == {"bad_crc"}


@pytest.mark.parametrize("position", [1, 4, 30, 88])
def test_a_damaged_record_at_any_segments_head_hides_nothing_behind_it(
    golden_copy: GetStore, position: int
) -> None:
    root = golden_copy("small-clean-533")
    whole = verify(root, deep=True)
    for path in sorted((root / "commitlog").iterdir())[:: 1 if position == 88 else 6]:
        good = path.read_bytes()
        patch(path, position, bytes([good[position] ^ 0x20]))
        report = verify(root, deep=True)
        assert [one.offset for one in report.findings] == [int(path.name)]
        assert (report.records, report.max_offset) == (whole.records - 1, whole.max_offset)
        patch(path, position, good[position : position + 1])


def test_what_recovery_mends_is_a_warning(golden_copy: GetStore) -> None:
    root = golden_copy("small-clean-533")
    tear_the_tail(root)
    add_a_unit(root)
    assert not verify(root, deep=True).ok
    (root / "abort").touch()
    report = verify(root)
    assert {f.severity for f in report.findings if f.kind == "torn_tail"} == {"warning"}


@pytest.mark.parametrize("above", [True, False])
def test_a_page_that_a_power_loss_took_is_a_warning_above_the_workers_progress(
    golden_copy: GetStore, above: bool
) -> None:
    """The next start makes it anew from the log. Below the progress all was synced: damage."""
    root = golden_copy("small-clean-533")
    with open_store(root) as store:
        row = len(store.index.files()[0].entries()) // 2
        entry_offset = int(store.index.files()[0].entries()["physical_offset"][row])
        end = store.log.end
    (root / "keelog" / "progress").mkdir(parents=True)
    (root / "abort").touch()
    save_epochs(root, [EpochLine(1, 0)])
    done = (unit(root, 9)[0], entry_offset) if above else (end, end)
    save_progress(root, "queue-0-of-1", WorkerCheckpoint(1, done[0]))
    save_progress(root, "index", WorkerCheckpoint(1, done[1]))
    patch(queue_file(root), 9 * 20, bytes(3 * 20))
    patch(index_file(root), entry_at(root, row + 1), bytes(30 * 20))
    report = verify(root, deep=True)
    assert report.ok is above
    assert ("entry_mismatch" in errors(report)) is not above
    assert {"unit_missing", "entry_mismatch"} <= {f.kind for f in report.findings}


@pytest.mark.parametrize("gone", ["all", "topic", "queue", "first file", "index"])
@pytest.mark.parametrize("deep", [True, False], ids=["deep", "quick"])
def test_deleted_files_of_our_own_are_one_warning_in_both_depths(
    tmp_path: Path, gone: str, deep: bool
) -> None:
    """The next start makes them anew, also after a clean stop."""
    log = LivingLog(tmp_path, 2048)
    log.grow(60)
    log.close()
    rebuild(tmp_path, settings=SETTINGS)
    assert verify(tmp_path, deep, settings=SETTINGS).findings == []
    queues = tmp_path / "consumequeue"
    topic = max(queues.iterdir(), key=lambda path: len(list(path.rglob("*"))))
    queue = max(topic.iterdir(), key=lambda path: len(list(path.iterdir())))
    if gone == "first file":
        if not deep:
            pytest.skip("a quick check does not hold queues against the log")
        assert len(list(queue.iterdir())) > 1
        min(queue.iterdir()).unlink()
    else:
        shutil.rmtree({"all": queues, "topic": topic, "queue": queue}.get(gone, tmp_path / "index"))
    report = verify(tmp_path, deep, settings=SETTINGS)
    (found,) = report.findings
    assert (report.ok, found.severity) == (True, "warning")
    part = "index" if gone == "index" else "queues"
    assert found.shape(tmp_path)["try"] == f"keelog store rebuild {tmp_path} --{part}"
    if gone in ("topic", "queue"):
        assert found.file == str(topic if gone == "topic" else queue)
        assert found.count > 1
        other = verify(tmp_path, not deep, settings=SETTINGS)
        assert other.findings == report.findings


def test_a_damaged_name_is_no_queue_that_lacks_its_files(tmp_path: Path) -> None:
    """A quick check reads names that nobody has verified."""
    whole = make_store(tmp_path)
    record = whole.records[3]
    topic_at = record.physical_offset + record.raw.index(record.topic.encode())
    for byte in (b"Z", b"\xff"):
        whole.patch(topic_at, byte)
        found = verify(tmp_path, settings=SETTINGS).findings
        assert {finding.kind for finding in found} <= {"bad_crc"}


def test_a_store_that_is_none_raises(tmp_path: Path) -> None:
    with pytest.raises(NotAStore):
        verify(tmp_path)


def test_progress_is_told(golden_copy: GetStore) -> None:
    told: list[tuple[int, int]] = []
    report = verify(golden_copy("crc32-property"), progress=lambda *at: told.append(at))
    assert told == sorted(told)
    assert told[-1][0] <= told[-1][1] == report.max_offset


def test_units_in_a_row_are_one_finding_with_a_count_whoever_checked_them() -> None:
    findings, later = Findings(), Findings()
    for number in [*range(100, 180), 190]:
        one = findings if number < 150 else later
        one.add(Finding("warning", "unit_missing", "a", number * 50, "x", "load", 0, number))
    findings.merge(later)
    first, second = findings.all()
    assert (first.queue_offset, first.count, first.said) == (
        100,
        80,
        "80 units missing from 100 on",
    )
    assert (second.queue_offset, second.count, second.said) == (190, 1, "x")


def test_a_thousand_alike_are_a_few_lines_with_a_number() -> None:
    findings = Findings()
    for number in range(1000):
        findings.add(Finding("warning", "unit_missing", "a", number, "x"))
    findings.count_more("unit_missing", "a", 5)
    findings.add(Finding("error", "gap", "b", 1, "y"))
    found = findings.all()
    assert found[0].kind == "gap"
    assert len(found) == 1 + ALIKE_MAX
    assert found[-1].detail == f"x (and {1005 - ALIKE_MAX} more)"
