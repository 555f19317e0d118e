"""The speed of Spark on a large store: rows read a second, and the time of rebuild and audit.

    python -m scripts.bench.spark --store DIR --records 10000000 --rounds 3

Makes the store first when it is not there (`scripts.bench.big_store`). Every case has its plain
alternative, run in the same session, in alternating rounds; what counts are the ratios:

- full: the 14 columns of a typical read, against the same rows as tuples, and against
  `spark.read.parquet` of the same rows, exported once;
- topic: one topic of 16, against the full read;
- two: topic and queueOffset, against the full read and Parquet;
- rebuild: `keelog.pipeline.jobs.rebuild`, against the workers' own (`keelog store rebuild`);
- audit: `keelog.pipeline.jobs.audit`, against a full outer join of messages and queue units.

CPU seconds are of all processes below this one, JVM and Python workers; on a machine that does
other things too they say more than seconds do. The page cache is warm: all is read once before.
"""

import argparse
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, NamedTuple

import psutil
from pyspark.sql.datasource import InputPartition
from pyspark.sql.types import StructType

from keelog.pipeline.session import local_session
from keelog.pipeline.source import KeelogReader, KeelogSource
from keelog.text import print_line
from protocol.kernel import loader
from scripts.bench.big_store import make, topic_name
from scripts.command_line import grid
from scripts.rivals.proc import MIB, repeated
from workers.rebuild import rebuild as rebuild_here

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

TYPICAL = (
    *("topic", "queueId", "queueOffset", "body", "tags", "keys", "uniqKey", "flag", "sysFlag"),
    *("bornTimestamp", "storeTimestamp", "bodyCrc", "physicalOffset", "storeSize"),
)
TWO = ("topic", "queueOffset")
SAMPLE_S = 1.0
CORES = 2
PAIRS = (
    ("full", "full, tuples"),
    ("full", "full, Parquet"),
    ("topic", "full"),
    ("topic", "topic, Parquet"),
    ("two", "full"),
    ("two", "two, Parquet"),
    ("rebuild queues", "rebuild queues, worker"),
    ("rebuild all", "rebuild all, worker"),
    ("audit", "audit, outer join"),
)
"""Each first case is some times faster than the second one."""


class TupleSource(KeelogSource):
    """The same rows as Python tuples: what most Python data sources do."""

    @classmethod
    def name(cls) -> str:
        return "keelog_tuples"

    def reader(self, schema: StructType) -> KeelogReader:
        return TupleReader(super().reader(schema))


class TupleReader(KeelogReader):
    """Makes a tuple of each row of another reader's batches."""

    def __init__(self, inner: KeelogReader) -> None:
        self._inner = inner

    def partitions(self) -> list[InputPartition]:
        return self._inner.partitions()

    def read(self, partition: InputPartition | None) -> Iterator[Any]:
        """Rows one by one."""
        for batch in self._inner.read(partition):
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


class TreeWatch:
    """CPU time and memory of all processes below this one, the dead ones' too."""

    def __init__(self) -> None:
        self._me = psutil.Process()
        self._cpu: dict[tuple[int, float], float] = {}
        self._lock = threading.Lock()
        self.peak_python = self.peak_java = 0

    def look(self) -> float:
        """One sample; returns the CPU seconds of all up to now."""
        with self._lock:
            for process in [self._me, *self._me.children(recursive=True)]:
                try:
                    times, name = process.cpu_times(), process.name()
                    self._cpu[process.pid, process.create_time()] = times.user + times.system
                    used = process.memory_full_info().uss
                except psutil.Error:
                    continue
                if "java" in name:
                    self.peak_java = max(self.peak_java, used)
                elif process.pid != self._me.pid:
                    self.peak_python = max(self.peak_python, used)
            return sum(self._cpu.values())


class Timing(NamedTuple):
    """One run of a case."""

    rows: int
    seconds: float
    cpu_s: float


class Case(NamedTuple):
    """Something to time; `prepare` runs before each time and does not count."""

    name: str
    rows: int
    run: Callable[[], Any]
    prepare: Callable[[], Any] = lambda: None


def timed(case: Case, watch: TreeWatch) -> Timing:
    case.prepare()
    before, began = watch.look(), time.monotonic()
    case.run()
    seconds = time.monotonic() - began
    found = Timing(case.rows, seconds, watch.look() - before)
    print_line(f"  {case.name}: {seconds:.2f} s, {found.cpu_s:.2f} CPU s")
    return found


def warm(store: Path) -> None:
    """Reads all files once."""
    for path in store.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                while file.read(8 * MIB):
                    pass


class SparkBench:
    """The cases over one store."""

    def __init__(self, spark: "SparkSession", store: Path, records: int, work: Path) -> None:
        self.spark, self.store, self.records, self.work = spark, store, records, work
        self.parquet = work / "parquet"
        spark.dataSource.register(TupleSource)

    def frame(self, form: str = "keelog", **options: str) -> "DataFrame":
        return self.spark.read.format(form).options(**options).load(str(self.store))

    def read(self, name: str, rows: int, make_frame: Callable[[], "DataFrame"]) -> Case:
        """A case that makes every row, and keeps none."""

        def work() -> None:
            make_frame().write.format("noop").mode("overwrite").save()

        return Case(name, rows, work)

    def read_parquet(
        self, name: str, rows: int, choose: Callable[["DataFrame"], "DataFrame"]
    ) -> Case:
        """A case that reads what was exported, before the first of them."""

        def export() -> None:
            if not self.parquet.exists():
                print_line("exporting to Parquet")
                self.frame(columns=",".join(TYPICAL)).write.parquet(str(self.parquet))

        case = self.read(name, rows, lambda: choose(self.spark.read.parquet(str(self.parquet))))
        return case._replace(prepare=export)

    def reads(self) -> list[Case]:
        """Full, one topic, two columns, and their alternatives."""
        typical, two, topic = ",".join(TYPICAL), ",".join(TWO), topic_name(3)
        one = self.frame(columns="topic", topics=topic).count()
        rows = self.records
        return [
            self.read("full", rows, lambda: self.frame(columns=typical)),
            self.read("full, tuples", rows, lambda: self.frame("keelog_tuples", columns=typical)),
            self.read_parquet("full, Parquet", rows, lambda frame: frame),
            self.read("topic", one, lambda: self.frame(columns=typical, topics=topic)),
            self.read_parquet(
                "topic, Parquet", one, lambda frame: frame.where(f"topic = '{topic}'")
            ),
            self.read("two", rows, lambda: self.frame(columns=two)),
            self.read_parquet("two, Parquet", rows, lambda frame: frame.select(*TWO)),
        ]

    def rebuilds(self) -> list[Case]:
        """Queues alone, and queues with index, by Spark and by the workers' own code."""
        from keelog.pipeline.jobs.rebuild import rebuild

        out = self.work / "rebuilt"

        def clear() -> None:
            shutil.rmtree(out, ignore_errors=True)

        cases = []
        for name, index in (("rebuild queues", False), ("rebuild all", True)):
            spark = partial(rebuild, self.spark, self.store, index=index, out=out)
            here = partial(rebuild_here, self.store, index=index)
            cases += [
                Case(name, self.records, spark, clear),
                Case(f"{name}, worker", self.records, here),
            ]
        return cases

    def audits(self) -> list[Case]:
        """The audit, and the join that finds the same differences of log and queues."""
        from keelog.pipeline.jobs.audit import audit

        def by_job() -> None:
            found = audit(self.spark, self.store)
            if not found.ok:
                raise RuntimeError(f"the audit found {found.shape()}")

        def by_join() -> None:
            if found := self._join():
                raise RuntimeError(f"the join found {found} differences")

        return [
            Case("audit", self.records, by_job),
            Case("audit, outer join", self.records, by_join),
        ]

    def _join(self) -> int:
        from pyspark.sql.functions import col

        key = ["topic", "queueId", "queueOffset"]
        rest = ["physicalOffset", "storeSize"]
        log = self.frame(columns=",".join(key + rest))
        units = self.frame("keelog_queues", columns=",".join(key + rest))
        joined = log.alias("a").join(units.alias("b"), key, "full_outer")
        differs = ~col("a.physicalOffset").eqNullSafe(col("b.physicalOffset"))
        differs |= ~col("a.storeSize").eqNullSafe(col("b.storeSize"))
        return joined.where(differs).count()


def show(timings: dict[str, list[Timing]]) -> None:
    """Medians of each case, and the medians of the ratios within the rounds."""
    rows = []
    for name, found in timings.items():
        count, seconds = found[0].rows, median(one.seconds for one in found)
        cpu_s = median(one.cpu_s for one in found) / count * 1e6
        rows.append(
            (name, f"{count:,}", f"{seconds:.2f}", f"{count / seconds:,.0f}", f"{cpu_s:.2f}")
        )
    print(grid(("case", "rows", "s", "rows/s", "CPU s / M rows"), rows))
    for fast, slow in PAIRS:
        pairs = list(zip(timings.get(slow, ()), timings.get(fast, ()), strict=False))
        if pairs:
            times = median(a.seconds / b.seconds for a, b in pairs)
            cpu = median(a.cpu_s / b.cpu_s for a, b in pairs)
            print(f"{fast} / {slow}: {times:.2f} times faster, {cpu:.2f} times less CPU")


def run(args: argparse.Namespace, work: Path) -> None:
    conf = {"spark.driver.memory": "2g", "spark.ui.showConsoleProgress": "false"}
    watch = TreeWatch()
    timings: dict[str, list[Timing]] = {}
    session = local_session("bench_spark", CORES, conf)
    with repeated(SAMPLE_S, watch.look), session as spark:
        spark.sparkContext.setLogLevel("ERROR")
        bench = SparkBench(spark, args.store.resolve(), args.records, work)
        parts = {"read": bench.reads, "rebuild": bench.rebuilds, "audit": bench.audits}
        cases = [case for name, part in parts.items() if name in args.only for case in part()]
        for number in range(-1, args.rounds):
            print_line(f"round {number + 1} of {args.rounds}" if number >= 0 else "warm-up")
            # Every other round backwards: what grows with time favours nobody.
            for case in cases if number % 2 == 0 else reversed(cases):
                found = timed(case, watch)
                if number >= 0:
                    timings.setdefault(case.name, []).append(found)
    show(timings)
    python, jvm = (f"{peak // MIB:,} MiB" for peak in (watch.peak_python, watch.peak_java))
    print(
        f"peak memory (USS): python worker {python}, jvm {jvm};"
        f" kernel: {loader.describe()}; page cache warm"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else "")
    parser.add_argument("--store", type=Path, required=True, metavar="DIR")
    parser.add_argument("--records", type=int, default=10_000_000, help="how many it holds")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", nargs="+", default=["read", "rebuild", "audit"])
    args = parser.parse_args()
    if not args.store.exists():
        make(args.store, args.records)
    print_line("reading everything once")
    warm(args.store)
    with tempfile.TemporaryDirectory() as folder:
        run(args, Path(folder))


if __name__ == "__main__":
    main()
