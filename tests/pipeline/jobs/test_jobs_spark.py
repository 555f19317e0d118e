"""The jobs on Spark itself: both plans of a rebuild, against what the workers' rebuild writes."""

import shutil
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from keelog.pipeline.jobs.audit import audit, findings_frame
from keelog.pipeline.jobs.rebuild import Plan, rebuild
from node.store.verify.verify import verify
from protocol.errors import StoreDamaged
from tests.node.store.test_verify import DAMAGE, Planted, change_a_unit
from tests.pipeline.jobs.rebuild.test_rebuild import tree
from tests.support.golden import STORES, GetStore
from tests.workers.test_rebuild import settings_of
from workers.rebuild import rebuild as rebuild_by_workers

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("spark")]

PLANS: tuple[Plan, ...] = ("inplace", "shuffle")


def check_plans(spark: SparkSession, by_workers: Path, by_spark: Path, name: str) -> None:
    """Each plan writes the workers' bytes into a folder of its own, and the last one switches."""
    settings = settings_of(name)
    rebuild_by_workers(by_workers, settings=settings)
    expected = tree(by_workers)
    for plan in PLANS:
        out = by_spark / "derived"
        rebuild(spark, by_spark, plan=plan, out=out, settings=settings, range_bytes=1 << 20)
        assert tree(out) == expected, plan
        shutil.rmtree(out)
    rebuild(spark, by_spark, settings=settings)
    assert tree(by_spark) == expected


@pytest.mark.spark_long
def test_both_plans_write_what_the_workers_write(
    spark: SparkSession, golden_copy: GetStore
) -> None:
    name = "crc32-property"
    check_plans(spark, golden_copy(name), golden_copy(name), name)


def test_damage_is_told_through_spark_and_what_was_there_stays(
    spark: SparkSession, golden_copy: GetStore
) -> None:
    root = golden_copy("crc32-property")
    before = tree(root)
    with (root / "commitlog" / ("0" * 20)).open("r+b") as file:
        file.seek(120)
        file.write(b"\xff")
    for plan in PLANS:
        with pytest.raises(StoreDamaged, match=r"KEELOG_STORE_DAMAGED.*log offset 0"):
            rebuild(spark, root, plan=plan, settings=settings_of("crc32-property"))
    assert tree(root) == before


def test_an_audit_names_damage_and_gives_it_as_rows(
    spark: SparkSession, golden_copy: GetStore
) -> None:
    root = golden_copy("small-clean-533")
    assert audit(spark, root).report.findings == []
    change_a_unit(root)
    frame = findings_frame(spark, audit(spark, root))
    assert [row.kind for row in frame.collect()] == ["unit_mismatch"]


@pytest.mark.spark_long
@pytest.mark.parametrize("planted", DAMAGE, ids=[planted.damage.__name__ for planted in DAMAGE])
def test_each_damage_is_found_on_spark(
    spark: SparkSession, golden_copy: GetStore, planted: Planted
) -> None:
    root = golden_copy("small-clean-533")
    planted.damage(root)
    assert set(audit(spark, root).report.findings) == set(verify(root, deep=True).findings)


@pytest.mark.spark_long
@pytest.mark.parametrize("name", STORES)
def test_every_golden_store_by_both_plans(
    spark: SparkSession, golden_copy: GetStore, name: str
) -> None:
    check_plans(spark, golden_copy(name), golden_copy(name), name)
