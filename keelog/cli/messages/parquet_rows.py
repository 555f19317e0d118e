"""Rows of Parquet files as the objects that `keelog produce` sends: what an export wrote."""

import json
import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.parquet as pq

from keelog.pipeline.jobs.export_files import MANIFEST, NULL_PARTITION, parse_manifest
from keelog.pipeline.tables import DAMAGE, MESSAGES
from node.runtime.settings import snake_case
from protocol.errors import IllegalMessage, NotFound
from protocol.record.bodies import COMPRESSION_BITS

Fields = dict[str, Any]
Row = Callable[[], Fields]

_NAMES = {
    name: snake_case(name)
    for name in (
        *("topic", "queueId", "queueOffset", "body", "tags", "keys", "properties", "flag"),
        *("sysFlag", "bornTimestamp", "bornHost", "reconsumeTimes", DAMAGE.name),
    )
}
"""Columns that are read, and the fields of a message that they are."""
_KNOWN = {*_NAMES, *(column.name for column in MESSAGES.columns), "date"}
_TOPIC = re.compile(r"topic=(.+)")


def parquet_rows(
    path: Path, count_max: int, advance: Callable[[int, int], None]
) -> Iterator[list[Row]]:
    """The rows of a file, or of a folder's files in the order of their names; `count_max` together.

    Of an export, the files that its manifest names. A row is called for its fields. `advance` gets
    how many files are done, and how many there are. Raises NotFound, IllegalMessage.
    """
    files = _files(path)
    for number, file in enumerate(files, 1):
        try:
            with pq.ParquetFile(file) as opened:
                found = _columns(file, opened.schema_arrow.names)
                known = _of_folder(file)
                for batch in opened.iter_batches(count_max, columns=found):
                    yield [partial(_fields, row, known) for row in _plain(batch)]
        except pa.ArrowException as error:
            raise IllegalMessage(
                f"{file} cannot be read as Parquet: {error}", "a file that an export wrote"
            ) from None
        advance(number, len(files))


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise NotFound(f"{path} is not there", "a file or folder that keelog export wrote")
    if not path.is_dir():
        return [path]
    manifest = path / MANIFEST
    if manifest.exists():
        named = parse_manifest(manifest.read_bytes(), str(manifest)).files
        return sorted(path / file.path for file in named)
    found = (file.relative_to(path) for file in path.rglob("*.parquet"))
    # As Spark and Arrow have it: such names are not data.
    files = [path / file for file in found if not any(part[0] in "._" for part in file.parts)]
    if not files:
        raise NotFound(f"{path} has no Parquet file", "a folder that an export wrote")
    return sorted(files)


def _columns(file: Path, names: list[str]) -> list[str]:
    """Those to read. Raises IllegalMessage for one that no message has, and without bodies."""
    unknown = sorted({*names} - _KNOWN)
    if unknown:
        raise IllegalMessage(
            f"{file} has the column {unknown[0][:80]!a}, which no message has",
            f"some of {', '.join(name for name in _NAMES if name != DAMAGE.name)}",
        )
    if "body" not in names:
        raise IllegalMessage(f"{file} has no column body", "an export with bodies")
    return [name for name in names if name in _NAMES]


def _of_folder(file: Path) -> Fields:
    """The topic, where a folder is named after it, as the export by topics does."""
    for part in reversed(file.parts[:-1]):
        named = _TOPIC.fullmatch(part)
        if named is not None and named[1] != NULL_PARTITION:
            return {"topic": unquote(named[1])}
    return {}


def _plain(batch: pa.RecordBatch) -> list[dict[str, Any]]:
    """The rows, times as ms since 1970: Python's own end with the year 9999."""
    place = batch.schema.get_field_index("bornTimestamp")
    if place >= 0 and pa.types.is_timestamp(batch.schema.field(place).type):
        ms = batch.column(place).cast(pa.timestamp("ms", tz="UTC"), safe=False).cast(pa.int64())
        batch = batch.set_column(place, "bornTimestamp", ms)
    rows: list[dict[str, Any]] = batch.to_pylist()
    return rows


def _fields(row: dict[str, Any], known: Fields) -> Fields:
    """The fields of a message. Raises ValueError for a row without a body."""
    fields = known | {_NAMES[name]: value for name, value in row.items() if value is not None}
    if isinstance(fields.get("properties"), list):
        fields["properties"] = dict(fields["properties"])
    elif isinstance(fields.get("properties"), str):
        fields["properties"] = json.loads(fields["properties"])
    if "sys_flag" in fields:
        fields["sys_flag"] &= ~COMPRESSION_BITS  # bodies are plain
    return fields
