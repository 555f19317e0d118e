"""An audit in tasks finds what one walk finds: nothing in a good store, each damage by its place.

The engine here runs tasks one by one, in this process; Spark itself: test_jobs_spark.py.
"""

import json
from itertools import cycle
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from keelog.pipeline.jobs import scan
from keelog.pipeline.jobs.audit import SCHEMA, AuditResult, audit, write_report
from keelog.pipeline.jobs.scan import ScanRange
from keelog.pipeline.task_spec import LogAt
from node.runtime.settings import Settings
from node.store.verify.findings import ALIKE_MAX, Finding, Findings
from node.store.verify.verify import verify
from protocol.errors import NotAStore
from tests.node.store import test_verify as planting
from tests.node.store.test_verify import DAMAGE, Planted
from tests.pipeline.jobs.forged_log import forged_log
from tests.pipeline.jobs.plain_engine import PlainEngine
from tests.support.golden import STORES, GetStore, facts
from tests.support.golden_view import size_settings
from tests.workers.living_log import SETTINGS, LivingLog
from workers.rebuild import rebuild as rebuild_by_workers

SHORT = {
    *(planting.flip_body, planting.change_magic, planting.change_size, planting.change_place),
    *(planting.wipe_the_rest_of_a_segment, planting.remove_a_segment, planting.change_a_unit),
    *(planting.add_a_unit, planting.remove_a_queue, planting.change_an_entrys_place),
    *(planting.change_an_entrys_chain, planting.move_the_checkpoint_ahead),
}
"""Twelve kinds of damage; the others take as long again."""
NOT_AS_A_CLEAN_STOP_LEAVES_IT = {"small-torn", "cq-missing", "trimmed-cq-missing"}
LONG = pytest.mark.spark_long


def run(root: Path, settings: Settings | None = None, range_bytes: int = 100_000) -> AuditResult:
    engine: Any = PlainEngine()
    return audit(engine, root, settings, range_bytes)


def check_equal(root: Path, settings: Settings, range_bytes: int) -> AuditResult:
    """The audit, which must find exactly what the deep check in one walk finds."""
    found, expected = run(root, settings, range_bytes), verify(root, True, settings=settings)
    mine, other = found.report.shape(), expected.shape()
    assert set(found.report.findings) == set(expected.findings)
    assert {**mine, "findings": 0} == {**other, "findings": 0}
    return found


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in ("mixed-kinds", "small-torn", "trimmed") else LONG)
        for name in STORES
    ],
)
def test_of_a_golden_store_it_says_what_verify_says(name: str, golden: GetStore) -> None:
    result = check_equal(golden(name), size_settings(name, facts(name)), 200_000)
    assert result.ok
    assert result.report.findings == [] or name in NOT_AS_A_CLEAN_STOP_LEAVES_IT


@pytest.mark.parametrize(
    "planted",
    [
        pytest.param(one, id=one.damage.__name__, marks=() if one.damage in SHORT else LONG)
        for one in DAMAGE
    ],
)
def test_damage_is_named_at_its_place_and_nothing_else_is(
    golden_copy: GetStore, planted: Planted
) -> None:
    root = golden_copy("small-clean-533")
    planted.damage(root)
    result = check_equal(root, Settings(), 100_000)
    shape = result.shape()
    first = next(finding for finding in shape["findings"] if finding["kind"] == planted.kind)
    assert (first["file"], first["offset"]) == (str(root / planted.file), planted.offset)
    assert {finding["kind"] for finding in shape["findings"]} == {planted.kind, *planted.too}
    assert not result.ok
    assert str(root) in first["repair"]


def test_damage_next_to_every_border_is_told_as_one_walk_tells_it(tmp_path: Path) -> None:
    log = LivingLog(tmp_path)
    log.grow(60)
    log.close()
    rebuild_by_workers(tmp_path, settings=SETTINGS)
    path = tmp_path / "commitlog" / ("0" * 20)
    good = path.read_bytes()
    for number, position in zip(range(0, 60, 7), cycle((90, 0, 4, 30)), strict=False):
        spoiled = bytearray(good)
        # Two records in a row, and the first one of the log too.
        for at in log.starts[number : number + 2]:
            spoiled[at + position] ^= 0x21
        path.write_bytes(spoiled)
        check_equal(tmp_path, SETTINGS, 1000)
        check_equal(tmp_path, SETTINGS, 170)


def test_a_forged_record_is_no_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    start, place = forged_log(tmp_path)
    rebuild_by_workers(tmp_path, settings=SETTINGS)

    def cut(log: LogAt, _bytes: int, _least: int) -> list[ScanRange]:
        return [
            ScanRange(0, 0, start + 100, True),
            ScanRange(1, start + 100, place + 100, False),
            ScanRange(2, place + 100, log.end, False),
        ]

    monkeypatch.setattr(scan, "plan_ranges", cut)
    result = check_equal(tmp_path, SETTINGS, 0)
    assert (result.repaired, result.report.findings) == (True, [])


def test_without_queues_and_index_each_is_told_once(tmp_path: Path) -> None:
    log = LivingLog(tmp_path)
    log.grow(100)
    log.close()
    found = check_equal(tmp_path, SETTINGS, 2000).report.findings
    assert sorted(finding.kind for finding in found) == ["entry_missing", "unit_missing"]


def test_the_report_is_parquet_and_json_with_the_same_rows(golden_copy: GetStore) -> None:
    root = golden_copy("small-clean-533")
    planted = next(one for one in DAMAGE if one.kind == "unit_mismatch")
    planted.damage(root)
    result = run(root)
    write_report(result, root.parent / "audit")
    document = json.loads((root.parent / "audit" / "report.json").read_text())
    table = pq.read_table(root.parent / "audit" / "findings.parquet")
    assert table.schema.names == SCHEMA.names
    assert table.to_pylist() == document["findings"]
    [row] = document["findings"]
    assert (row["topic"], row["queue_id"], row["queue_offset"]) == ("S533_orders", 0, 5)
    assert row["repair"] == f"keelog spark rebuild {root} --queues"


def test_findings_of_many_tasks_are_counted_like_those_of_one() -> None:
    parts = [Findings(), Findings()]
    for number, part in enumerate(parts):
        for at in range(ALIKE_MAX + 5):
            part.add(Finding("error", "bad_crc", "f", 100 * number + at, "x"))
        part.add(Finding("warning", "unit_missing", "all", 0, "none at all"))
    merged = Findings()
    for part in parts:
        merged.merge(part)
    found = merged.all()
    assert len(found) == ALIKE_MAX + 1
    assert f"(and {ALIKE_MAX + 10} more)" in found[ALIKE_MAX - 1].detail
    assert found[-1].detail == "none at all"


def test_what_is_no_store_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotAStore, match="commitlog"):
        run(tmp_path)
