"""An engine for jobs that runs their tasks one after the other, in this process.

What a task is given and answers is pickled, as on the way to a worker. A task can be run twice,
as a retry or speculation would.
"""

import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa

MapInArrow = Callable[[Iterable[pa.RecordBatch]], Iterator[pa.RecordBatch]]

_PARTITIONS = 3
_BATCH_ROWS = 100


class PlainTasks:
    """What `parallelize` and `map` give."""

    def __init__(self, items: Sequence[Any], times: int) -> None:
        self.items = items
        self._times = times
        self._function: Callable[[Any], Any] = lambda item: item

    def map(self, function: Callable[[Any], Any]) -> "PlainTasks":
        self._function = function
        return self

    def collect(self) -> list[Any]:
        packed = [pickle.dumps((self._function, item)) for item in self.items]
        answers: list[Any] = []
        for data in packed:
            for _ in range(self._times):
                function, item = pickle.loads(data)
                answer = pickle.loads(pickle.dumps(function(item)))
            answers.append(answer)
        return answers


class PlainFrame:
    """A DataFrame, in what the shuffle asks of one: a list of partitions."""

    def __init__(self, partitions: Sequence[pa.Table], times: int) -> None:
        self._partitions = partitions
        self._times = times

    def mapInArrow(self, function: MapInArrow, _schema: str) -> "PlainFrame":  # noqa: N802
        packed, tables = pickle.dumps(function), []
        for partition in self._partitions:
            for _ in range(self._times):
                task = pickle.loads(packed)
                found = list(task(partition.to_batches(max_chunksize=_BATCH_ROWS)))
            tables += [pa.Table.from_batches(found)] if found else []
        return PlainFrame(tables, self._times)

    def repartition(self, _count: int, *keys: str) -> "PlainFrame":
        table = pa.concat_tables(self._partitions)
        numbers: dict[tuple[Any, ...], int] = {}
        rows = zip(*(table.column(key).to_pylist() for key in keys), strict=True)
        place = [numbers.setdefault(row, len(numbers)) % _PARTITIONS for row in rows]
        parts = [
            table.filter(pa.array([at == number for at in place])) for number in range(_PARTITIONS)
        ]
        return PlainFrame([part for part in parts if len(part)], self._times)

    def sortWithinPartitions(self, *keys: str) -> "PlainFrame":  # noqa: N802
        order = [(key, "ascending") for key in keys]
        return PlainFrame([table.sort_by(order) for table in self._partitions], self._times)

    def collect(self) -> list[tuple[Any, ...]]:
        return [tuple(row.values()) for table in self._partitions for row in table.to_pylist()]


class PlainEngine:
    """Stands for a session, in what the jobs ask of it."""

    defaultParallelism = 3  # noqa: N815  (Spark's name)
    master = "local"

    def __init__(self, times: int = 1) -> None:
        self.times = times
        self.sparkContext = self

    def setJobDescription(self, _what: str) -> None: ...  # noqa: N802  (Spark's names)

    def parallelize(self, items: Sequence[Any], _parts: int) -> PlainTasks:
        return PlainTasks(items, self.times)

    def createDataFrame(self, tasks: PlainTasks, schema: str) -> PlainFrame:  # noqa: N802
        name, _, _kind = schema.partition(" ")
        column = [pa.array([bytes(row[0])], pa.binary()) for row in tasks.items]
        return PlainFrame([pa.table({name: one}) for one in column], self.times)
