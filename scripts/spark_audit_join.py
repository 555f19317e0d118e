"""The audit that was not taken: units of log and queues as rows, in a full outer join.

For scripts that measure it against `pipeline.jobs.audit`, which shuffles nothing. It looks at units
alone, not at the index.
"""

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import functions as fn

import pipeline
from node.runtime.settings import Settings
from node.store.opening import open_store
from pipeline.jobs.rebuild.range_task import RangeJob
from pipeline.jobs.rebuild.shuffle import unit_rows
from pipeline.jobs.scan import RANGE_BYTES, plan_ranges
from pipeline.task_spec import LogAt
from protocol.derived.queue_unit import FILLER_SIZE

KEY = ("topic", "queueId", "queueOffset")
VALUES = ("physicalOffset", "storeSize", "tagsCode")


def audit_by_join(spark: SparkSession, path: Path | str) -> dict[str, int]:
    """How many units are missing, dangling and mismatched."""
    root = Path(path).resolve()
    with open_store(root) as store:
        starts = tuple(segment.start for segment in store.log.segments.segments)
        log = LogAt(str(root), store.log.segment_bytes, starts, store.log.min_offset, store.log.end)
        file_bytes = store.queue_file_bytes
    job = RangeJob(log, Settings().delay_levels_ms, file_bytes, False, None, None, False)
    ranges = plan_ranges(log, RANGE_BYTES, 2 * spark.sparkContext.defaultParallelism)
    pipeline.register(spark)
    expected = unit_rows(spark, job, ranges).where("topic is not null").select(*KEY, *VALUES)
    actual = (
        spark.read.format("keelog_queues").load(str(root)).where(f"storeSize < {FILLER_SIZE}")
    ).select(*KEY, *(fn.col(name).alias(f"found_{name}") for name in VALUES))
    joined = expected.join(actual, list(KEY), "full_outer")
    differs = fn.lit(False)
    for name in VALUES:
        differs |= fn.col(name) != fn.col(f"found_{name}")
    row = joined.agg(
        fn.count_if(fn.col("found_physicalOffset").isNull()).alias("missing"),
        fn.count_if(fn.col("physicalOffset").isNull()).alias("dangling"),
        fn.count_if(differs).alias("mismatch"),
    ).first()
    assert row is not None
    return row.asDict()
