"""The findings of an audit as rows: an Arrow table, a DataFrame, Parquet and JSON files."""

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession

from keelog.pipeline.errors import StoreUnreadable
from keelog.pipeline.jobs.audit.run import AuditResult

FINDINGS_FILE = "findings.parquet"
REPORT_FILE = "report.json"

SCHEMA = pa.schema(
    [
        ("severity", pa.string()),
        ("kind", pa.string()),
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("topic", pa.string()),
        ("queue_id", pa.int32()),
        ("queue_offset", pa.int64()),
        ("detail", pa.string()),
        ("count", pa.int64()),
        ("try", pa.string()),
        ("repair", pa.string()),
    ]
)


def findings_table(result: AuditResult) -> pa.Table:
    """One row a finding, errors first. `offset` is a log offset, or an index entry's number."""
    return pa.Table.from_pylist(result.shape()["findings"], SCHEMA)


def findings_frame(spark: SparkSession, result: AuditResult) -> DataFrame:
    """The same as a DataFrame."""
    return spark.createDataFrame(findings_table(result))


def write_report(result: AuditResult, folder: Path | str) -> None:
    """Writes findings.parquet and report.json into a folder, made when absent.

    Raises StoreUnreadable.
    """
    out = Path(folder)
    try:
        out.mkdir(parents=True, exist_ok=True)
        pq.write_table(findings_table(result), out / FINDINGS_FILE)
        (out / REPORT_FILE).write_text(json.dumps(result.shape(), indent=2) + "\n")
    except OSError as error:
        raise StoreUnreadable(f"the report was not written: {error}", "another --report") from None
