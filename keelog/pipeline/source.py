"""The batch sources of Spark: `keelog`; `keelog_queues` and `keelog_index` are its other tables.

Imports of numpy and pyarrow wait until they are needed: Spark imports this module to find out which
formats there are. There is no `pushFilters`: in Spark 4.1 to 4.3 what one use of a DataFrame pushes
down cuts the rows of all its other uses. Rows are chosen by options.
"""

from collections.abc import Iterator, MutableMapping
from typing import TYPE_CHECKING, Any, ClassVar

from pyspark.sql import datasource
from pyspark.sql.types import StructType

from keelog.pipeline.errors import BadMode, BadOption, UnknownColumn

if TYPE_CHECKING:
    from keelog.pipeline.options import SinkOptions, SourceOptions, Use


class KeelogSource(datasource.DataSource):
    """`spark.read.format("keelog").load("/path/to/store")`: messages, or what `table` says."""

    table: ClassVar[str | None] = None

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self.options = options

    @classmethod
    def name(cls) -> str:
        return "keelog" if cls.table is None else f"keelog_{cls.table}"

    def schema(self) -> str:
        """The asked columns. Raises UnknownOption, BadOption, UnknownColumn, NotAStore."""
        from keelog.pipeline.stores.planned_store import check_stores
        from keelog.pipeline.tables import ddl

        if "provider" in self.options:
            # Spark 4.3 hands it over at CREATE TABLE, and to a read of that table no option at all.
            raise BadOption(
                "a table of Spark's catalog keeps no options for a Python source",
                f"CREATE TEMPORARY VIEW name USING {self.name()} OPTIONS (path '…')",
            )
        # Spark asks before it has said whether rows are to be read once or followed.
        parsed = self._parsed("any")
        check_stores(parsed.stores)
        return ddl(parsed.columns)

    def reader(self, schema: StructType) -> "KeelogReader":
        """For `schema`, which may be the user's own: some of the columns, with their types."""
        return KeelogReader(self._chosen("batch", schema))

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:  # noqa: N802
        """The same, for rows that are followed."""
        from keelog.pipeline.stream_query import KeelogStreamReader

        return KeelogStreamReader(self._chosen("stream", schema))

    # Types as text: pyspark 4.0 lacks the two. It imports this module like any other, and is
    # refused at the first use: an error here would keep it from finding the sources of others.

    def writer(self, schema: StructType, overwrite: bool) -> "datasource.DataSourceArrowWriter":
        """For rows of `schema`. Raises BadMode, UnknownOption, BadOption, UnknownColumn."""
        from keelog.pipeline.sink import KeelogWriter

        return KeelogWriter(self._sink_options(schema, overwrite))

    def streamWriter(  # noqa: N802 - Spark's
        self, schema: StructType, overwrite: bool
    ) -> "datasource.DataSourceStreamArrowWriter":
        """The same, for the rows of a stream."""
        from keelog.pipeline.sink import KeelogStreamWriter

        return KeelogStreamWriter(self._sink_options(schema, overwrite))

    def _sink_options(self, schema: StructType, overwrite: bool) -> "SinkOptions":
        from keelog.pipeline.options import parse_sink_options
        from keelog.pipeline.session import check_pyspark

        check_pyspark()
        if self.table is not None:
            raise BadMode(f"{self.name()} can only be read", "format('keelog') to write")
        fields = [(field.name, field.dataType.simpleString()) for field in schema.fields]
        return parse_sink_options(self.options, fields, overwrite)

    def _chosen(self, use: "Use", schema: StructType) -> "SourceOptions":
        """The options with the columns that `schema` names. Raises UnknownColumn."""
        from dataclasses import replace

        parsed = self._parsed(use)
        table = parsed.table
        chosen = table.choose(schema.fieldNames())
        for column, field in zip(chosen, schema.fields, strict=True):
            if _type_name(field.dataType.simpleString()) != _type_name(column.ddl):
                raise UnknownColumn(
                    f"column {column.name} of table {table.name} is {column.ddl}, not"
                    f" {field.dataType.simpleString()}",
                    "this type, and a cast after it",
                )
            if field.name != column.name or not field.nullable:
                raise UnknownColumn(
                    f"the schema names {field.name}"
                    f"{'' if field.nullable else ' NOT NULL'}, the table has {column.name}",
                    "the column's own name, without NOT NULL",
                )
        return replace(parsed, columns=chosen)

    def _parsed(self, use: "Use") -> "SourceOptions":
        from keelog.pipeline.options import parse_options
        from keelog.pipeline.session import check_pyspark

        check_pyspark()
        return parse_options(self.options, self.table, use)


class QueuesSource(KeelogSource):
    """`format("keelog_queues")`: the units of the ConsumeQueues."""

    table = "queues"


class IndexSource(KeelogSource):
    """`format("keelog_index")`: the entries of the index files."""

    table = "index"


SOURCES = (KeelogSource, QueuesSource, IndexSource)


class KeelogReader(datasource.DataSourceReader):
    """Plans on the driver's machine, once for a DataFrame, and reads in the tasks."""

    def __init__(self, options: "SourceOptions") -> None:
        self._options = options

    def partitions(self) -> list[datasource.InputPartition]:
        """One for each part; none for a read that has no row."""
        from keelog.pipeline.resolve import plan_parts

        return [datasource.InputPartition(part) for part in plan_parts(self._options)]

    def read(self, partition: datasource.InputPartition | None) -> Iterator[Any]:
        """The partition's rows as Arrow batches. Spark makes one empty partition of none."""
        from keelog.pipeline.read.parts import read_part

        if partition is not None and partition.value is not None:
            yield from read_part(partition.value)


def _type_name(text: str) -> str:
    return text.replace(" ", "").lower()
