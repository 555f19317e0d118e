"""Jobs on a Spark standalone cluster of two workers: real JVMs, the package shipped, one killed."""

import hashlib
import json
import re
import shutil
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import keelog.__main__
from keelog.pipeline.jobs.export_files import MANIFEST
from protocol.names import CONSUME_QUEUE_DIR, INDEX_DIR
from scripts.bench.big_store import make
from tests.pipeline.facts_as_rows import plain_rows, read_rows
from tests.support.golden import GetStore, Row, facts
from tests.support.spark_cluster import ROOT, Cluster, running_cluster, wait_for

pytestmark = [
    pytest.mark.spark_long,
    pytest.mark.process,
    pytest.mark.xdist_group("spark"),
    pytest.mark.timeout(900),
]

DRIVER = Path(__file__).with_name("cluster_driver.py")
RECORDS = 120_000
_PAGE = re.compile(r"web page: (http://\S+) application: (\S+)")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with running_cluster(tmp_path_factory.mktemp("cluster")) as running:
        yield running


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("big") / "store"
    make(root, RECORDS)
    return root


class Driver:
    """A driver at work: how far its stages are, and its answer."""

    def __init__(self, cluster: Cluster, job: str, store: Path, out: Path) -> None:
        self._cluster = cluster
        self._answer = out.with_name("answer.json")
        # Its own folder is the first that Python looks into: it must not be that of the tests.
        program = Path(shutil.copy(DRIVER, cluster.folder))
        words = (job, str(store), str(out), str(self._answer))
        self.process = cluster.submit(program, *words)

    def stages(self) -> list[Row]:
        """What Spark's own REST interface says of each stage; nothing before it is up."""
        assert self.process.poll() is None, f"it ended:\n{self._cluster.driver_log()[-6000:]}"
        page = _PAGE.search(self._cluster.driver_log())
        if page is None:
            return []
        try:
            url = f"{page[1]}/api/v1/applications/{page[2]}/stages"
            with urllib.request.urlopen(url, timeout=30) as answer:
                found: list[Row] = json.load(answer)
        except urllib.error.HTTPError:
            return []
        return found

    def in_the_middle(self) -> tuple[int, int]:
        """Once a stage of many tasks has done a fifth of them: how many, and of how many."""

        def look() -> tuple[int, int] | None:
            for stage in self.stages():
                done, total = stage["numCompleteTasks"], stage["numTasks"]
                if stage["status"] == "ACTIVE" and total >= 20 and done * 5 >= total:
                    return done, total
            return None

        return wait_for("a stage half way", look)

    def answer(self) -> dict[str, Any]:
        """What the job answered; fails with the log when it failed."""
        self._cluster.finish(self.process)
        found: dict[str, Any] = json.loads(self._answer.read_text())
        return found


def digests(root: Path) -> dict[str, str]:
    """Each derived file of a store by its path: a digest of its bytes."""
    found: dict[str, str] = {}
    for name in (CONSUME_QUEUE_DIR, INDEX_DIR):
        for path in sorted((root / name).rglob("*")):
            if path.is_file():
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                found[str(path.relative_to(root))] = digest
    return found


def sorted_rows(rows: list[Row]) -> list[Row]:
    return sorted(rows, key=lambda row: int(row["physicalOffset"]))


def test_tasks_on_both_workers_read_what_a_local_read_gives_with_the_shipped_package(
    cluster: Cluster, golden: GetStore, tmp_path: Path
) -> None:
    root = golden("small-clean")
    answer = Driver(cluster, "read", root, tmp_path / "rows.parquet").answer()
    rows = plain_rows(pq.read_table(tmp_path / "rows.parquet"))
    assert sorted_rows(rows) == sorted_rows(read_rows(path=str(root)))
    assert len({folder.split("/work-")[1][0] for folder, _, _ in answer["tasks"]}) == 2
    for _, package, path in [*answer["tasks"], answer["driver"]]:
        assert "keelog.zip/keelog/" in package
        inside = [folder for folder in path if Path(folder).is_relative_to(ROOT)]
        assert all("site-packages" in folder for folder in inside), "the checkout can be imported"


def test_a_command_runs_under_spark_submit(
    cluster: Cluster, golden: GetStore, tmp_path: Path
) -> None:
    program = Path(shutil.copy(keelog.__main__.__file__, cluster.folder / "keelog_main.py"))
    page = tmp_path / "stats.html"
    words = ("spark", "stats", str(golden("small-clean")), "--json", "--report", str(page))
    cluster.finish(cluster.submit(program, *words))
    assert f'"messages": {len(facts("small-clean").messages)}' in cluster.driver_log()
    assert page.read_text().startswith("<!DOCTYPE html>")


def test_a_killed_executor_changes_nothing_in_an_export(
    cluster: Cluster, store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    driver = Driver(cluster, "export", store, out)
    done, total = driver.in_the_middle()
    executors = cluster.executors()
    assert executors, "the executors ended before one could be killed"
    executors[0].kill()
    assert not (out / MANIFEST).exists(), "the export was over when its executor was killed"
    assert 0 < done < total
    assert driver.answer()["rows"] == RECORDS
    assert "Lost executor" in cluster.driver_log()
    named = {file["path"]: file for file in json.loads((out / MANIFEST).read_text())["files"]}
    assert {str(path.relative_to(out)) for path in out.rglob("*.parquet*")} == set(named)
    rows: list[Row] = []
    for path in named:
        topic = path.split("/")[0].removeprefix("topic=")
        found = plain_rows(pq.ParquetFile(out / path).read())
        rows += [{**row, "topic": topic} for row in found]
    assert sorted_rows(rows) == read_rows(path=str(store))


def test_a_rebuild_with_a_worker_killed_in_the_middle_is_byte_identical(
    cluster: Cluster, store: Path, tmp_path: Path
) -> None:
    out = tmp_path / "derived"
    driver = Driver(cluster, "rebuild", store, out)
    done, total = driver.in_the_middle()
    killed = cluster.workers[0]
    cluster.kill_worker(killed)
    assert not out.exists(), "the rebuild was over when its worker was killed"
    assert 0 < done < total
    assert not killed.is_running()
    answer = driver.answer()
    assert "Lost executor" in cluster.driver_log()
    assert (answer["records"], answer["repaired"]) == (RECORDS, False)
    expected = digests(store)
    assert len(expected) > 128, "a file for each queue, and the index"
    assert digests(out) == expected
