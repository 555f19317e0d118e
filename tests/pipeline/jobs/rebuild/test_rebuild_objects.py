"""Rebuilds from and into an object store: the workers' bytes, and a manifest that comes last."""

import errno
import fcntl
import hashlib
import json
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from pyarrow import fs

from keelog.pipeline.errors import BadOption, JobFailed, StoreUnreadable
from keelog.pipeline.jobs import scan
from keelog.pipeline.jobs.publication import (
    ObjectFolder,
    RebuildManifest,
    parse_manifest,
    read_rebuild,
)
from keelog.pipeline.jobs.rebuild import RebuildResult, held_folder, rebuild
from keelog.pipeline.jobs.scan import ScanRange, plan_ranges
from keelog.pipeline.stores import object_store
from keelog.pipeline.stores.access import Access, place_of
from keelog.pipeline.stores.object_store import REBUILD_MANIFEST, REBUILD_MARKER
from keelog.pipeline.task_spec import LogAt
from node.runtime.settings import Settings
from protocol.errors import NotAStore, StoreDamaged, StoreLocked
from protocol.ids import Queue
from protocol.names import CONSUME_QUEUE_DIR, INDEX_DIR
from protocol.record.encode import NewMessage
from tests.pipeline.facts_as_rows import read_rows
from tests.pipeline.jobs.forged_log import forged_log
from tests.pipeline.jobs.plain_engine import PlainEngine
from tests.pipeline.jobs.rebuild.test_rebuild import grown, tree
from tests.support.golden import GetStore
from tests.workers.living_log import SETTINGS, LivingLog
from tests.workers.test_rebuild import settings_of
from workers.rebuild import rebuild as rebuild_by_workers

STORES = ("mixed-kinds", "small-torn", "trimmed-cq-missing")
Address = Callable[[Path], str]


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Address:
    """`address(folder)`: the folder, there or not, as the prefix of a bucket."""

    def open_filesystem(root: str, _access: Access) -> tuple[fs.FileSystem, str]:
        folder = Path(root.removeprefix("s3://bucket"))
        return fs.SubTreeFileSystem(str(folder.parent), fs.LocalFileSystem()), folder.name

    monkeypatch.setattr(object_store, "open_filesystem", open_filesystem)
    object_store._objects.cache_clear()
    return lambda folder: f"s3://bucket{folder}"


def run(path: Path | str, settings: Settings = SETTINGS, **options: Any) -> RebuildResult:
    engine: Any = PlainEngine(times=2)
    return rebuild(engine, path, settings=settings, **{"plan": "shuffle", **options})


def check_whole(out: Path, manifest: RebuildManifest) -> None:
    """The folder holds what the manifest names, and nothing else."""
    found = {str(path.relative_to(out)): path for path in out.rglob("*") if path.is_file()}
    assert set(found) == {REBUILD_MANIFEST, *(file.path for file in manifest.files)}
    for file in manifest.files:
        data = found[file.path].read_bytes()
        assert (file.bytes, file.sha256) == (len(data), hashlib.sha256(data).hexdigest())


@pytest.mark.parametrize("name", STORES)
def test_a_golden_store_is_rebuilt_from_objects_into_objects(
    name: str, golden: GetStore, golden_copy: GetStore, address: Address, tmp_path: Path
) -> None:
    by_workers, settings, out = golden_copy(name), settings_of(name), tmp_path / "deep" / "out"
    report = rebuild_by_workers(by_workers, settings=settings)
    store = address(golden(name))
    result = run(store, settings, out=address(out), range_bytes=200_000)
    assert tree(out) == tree(by_workers)
    assert (result.records, result.queues, result.queue_files, result.index_files) == (
        *(report.records, report.queues, report.queue_files, report.index_files),
    )
    manifest = read_rebuild(address(out))
    check_whole(out, manifest)
    assert (manifest.source, manifest.log_end) == (store, result.end)
    assert manifest.figures["index_entries"] == result.index_entries
    run(store, settings, out=tmp_path / "here", plan="inplace")
    assert tree(tmp_path / "here") == tree(by_workers)


def test_a_queue_that_begins_within_a_file_gets_its_fillers(
    address: Address, tmp_path: Path
) -> None:
    log = LivingLog(tmp_path / "a")
    log.next_offset = {Queue("orders", 0): 37, Queue("orders", 1): 20}
    log.grow(150)
    log.close()
    run(tmp_path / "a", out=address(tmp_path / "out"), range_bytes=3000)
    run(tmp_path / "a", out=tmp_path / "local", range_bytes=3000)
    rebuild_by_workers(tmp_path / "a", settings=SETTINGS)
    assert tree(tmp_path / "out") == tree(tmp_path / "local") == tree(tmp_path / "a")


def test_a_forged_record_leaves_no_object(
    address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    start, place = forged_log(tmp_path / "a")

    def cut(log: LogAt, _bytes: int, _least: int) -> list[ScanRange]:
        borders = [0, start + 100, place + 500, log.end]
        return [
            ScanRange(number, *pair, number == 0) for number, pair in enumerate(pairwise(borders))
        ]

    monkeypatch.setattr(scan, "plan_ranges", cut)
    assert run(address(tmp_path / "a"), out=address(tmp_path / "out")).repaired
    rebuild_by_workers(tmp_path / "a", settings=SETTINGS)
    assert tree(tmp_path / "out") == tree(tmp_path / "a")
    check_whole(tmp_path / "out", read_rebuild(address(tmp_path / "out")))


@pytest.mark.parametrize(("queues", "index"), [(True, False), (False, True)])
def test_one_kind_can_be_rebuilt_alone(
    address: Address, tmp_path: Path, queues: bool, index: bool
) -> None:
    grown(tmp_path / "a")
    run(tmp_path / "a", out=address(tmp_path / "out"), queues=queues, index=index)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {REBUILD_MANIFEST, CONSUME_QUEUE_DIR if queues else INDEX_DIR}


def test_a_run_that_died_before_its_manifest_is_no_rebuild_and_the_next_replaces_it(
    address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, out = tmp_path / "a", tmp_path / "out"
    grown(store)

    def die(_self: ObjectFolder, _manifest: RebuildManifest) -> None:
        raise OSError("the network is gone")

    with monkeypatch.context() as patched:
        patched.setattr(ObjectFolder, "publish", die)
        with pytest.raises(StoreUnreadable, match="the network is gone"):
            run(store, out=address(out))
    assert (out / REBUILD_MARKER).exists()
    with pytest.raises(JobFailed, match="no finished rebuild"):
        read_rebuild(address(out))
    with pytest.raises(NotAStore, match="has not finished"):
        read_rows(path=address(out), table="queues")
    left = out / CONSUME_QUEUE_DIR / "gone" / "0" / ("0" * 20)
    left.parent.mkdir(parents=True)
    left.write_bytes(b"of another run")
    (out / REBUILD_MANIFEST).write_bytes(b'{"format": "keelog-re')
    run(store, out=address(out))
    rebuild_by_workers(store, settings=SETTINGS)
    assert tree(out) == tree(store)
    check_whole(out, read_rebuild(address(out)))


def test_a_finished_rebuild_and_folders_of_others_are_left_alone(
    address: Address, tmp_path: Path
) -> None:
    store, out = tmp_path / "a", tmp_path / "out"
    grown(store)
    run(store, out=address(out))
    before = tree(out)
    with pytest.raises(BadOption, match="holds a rebuild"):
        run(store, out=address(out))
    assert tree(out) == before
    stores = tree(store)
    with pytest.raises(BadOption, match="no rebuild has left commitlog there"):
        run(address(store), out=address(store))
    (out / REBUILD_MANIFEST).rename(out / REBUILD_MARKER)
    (out / "mine").touch()
    with pytest.raises(BadOption, match="no rebuild has left mine there"):
        run(store, out=address(out))
    assert (tree(out), tree(store)) == (before, stores)


def test_of_two_jobs_the_later_one_has_the_folder(address: Address, tmp_path: Path) -> None:
    at = place_of(address(tmp_path / "out"))
    first, second = (ObjectFolder(at, name) for name in ("first", "second"))
    first.begin()
    first.write("index/a", [b"first"])
    second.begin()
    with pytest.raises(JobFailed, match="was taken by another job"):
        first.write("index/a", [b"late"])
    with pytest.raises(JobFailed, match="was taken by another job"):
        first.output("_temporary/first/0")
    second.write("index/b", [b"second"])
    (tmp_path / "out" / "index" / "late").touch()
    with pytest.raises(JobFailed, match="index/b has 6 bytes, not no; 2 files differ"):
        second.publish(RebuildManifest("s", 0, 0, {}, ()))
    assert not (tmp_path / "out" / REBUILD_MANIFEST).exists()


def test_two_jobs_into_one_folder_do_not_meet(tmp_path: Path) -> None:
    store, out = tmp_path / "a", tmp_path / "out"
    grown(store)
    with held_folder(out):
        (tmp_path / "out.building" / "attempt").mkdir(parents=True)
        with pytest.raises(StoreLocked, match=f"another job writes to {out}"):
            run(store, out=out)
        assert (tmp_path / "out.building" / "attempt").is_dir()
    run(store, out=out)
    assert {path.name for path in tmp_path.iterdir()} == {"a", "out"}


def test_where_there_are_no_locks_a_rebuild_warns_and_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_arguments: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    grown(tmp_path / "a")
    monkeypatch.setattr("keelog.pipeline.jobs.publication.fcntl.flock", refuse)
    run(tmp_path / "a", out=tmp_path / "out")
    assert "cannot be locked" in caplog.text
    assert {path.name for path in tmp_path.iterdir()} == {"a", "out"}


def test_a_lock_that_its_job_has_just_removed_is_taken_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, lock, calls = tmp_path / "out.building.lock", fcntl.flock, []

    def remove_once(handle: int, flags: int) -> None:
        lock(handle, flags)
        calls.append(handle)
        if len(calls) == 1:
            path.unlink()

    monkeypatch.setattr("keelog.pipeline.jobs.publication.fcntl.flock", remove_once)
    with held_folder(tmp_path / "out"):
        assert len(calls) == 2
        assert path.exists()
    assert not path.exists()


@pytest.mark.parametrize("fault", ["damage", "gap"])
def test_faults_of_the_log_are_told_and_nothing_is_finished(
    address: Address, tmp_path: Path, fault: str
) -> None:
    store, out = tmp_path / "a", tmp_path / "out"
    log = LivingLog(store)
    log.grow(300)
    if fault == "gap":
        log.next_offset[Queue("orders", 0)] += 5
        log.append(NewMessage(topic="orders", queue_id=0, body=b"x"))
        log.publish()
    log.close()
    at = log.starts[120]
    if fault == "damage":
        path = store / "commitlog" / f"{at - at % log.segment_bytes:020d}"
        with path.open("r+b") as file:
            file.seek(at % log.segment_bytes + 89)
            file.write(b"\xff\xff")
    kind, told = {
        "damage": (StoreDamaged, f"log offset {at}"),
        "gap": (JobFailed, "orders/0: queue offsets .* are missing"),
    }[fault]
    with pytest.raises(kind, match=told):
        run(address(store), out=address(out), range_bytes=2000)
    with pytest.raises(JobFailed, match="no finished rebuild"):
        read_rebuild(address(out))


def test_an_object_that_is_lost_while_it_is_read_is_named(
    address: Address, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = tmp_path / "a"
    grown(store)
    segment = max((store / "commitlog").iterdir())

    def lose(*arguments: Any) -> list[ScanRange]:
        segment.unlink()
        object_store._objects.cache_clear()
        return plan_ranges(*arguments)

    monkeypatch.setattr(scan, "plan_ranges", lose)
    with pytest.raises(StoreDamaged, match=f"{segment.name}.*is gone.*store at rest"):
        run(address(store), out=address(tmp_path / "out"))


@pytest.mark.parametrize(
    ("path", "options", "told"),
    [
        ("s3://bucket/x", {}, r"can be switched in. Try: --out"),
        ("/x", {"out": "s3://bucket/y", "plan": "inplace"}, "Try: --plan shuffle"),
        ("tcp://127.0.0.1:7850", {}, "is a node that runs"),
        ("/x", {"out": "tcp://127.0.0.1:7850"}, "is a node that runs"),
        ("/x", {"out": "s3://"}, "names no bucket"),
    ],
)
def test_what_cannot_be_done_is_refused_with_what_can(
    path: str, options: dict[str, Any], told: str
) -> None:
    with pytest.raises(BadOption, match=rf"\[KEELOG_BAD_OPTION\].*{told}"):
        run(path, **options)


def test_parameters_stand_behind_an_address_and_secrets_are_not_kept() -> None:
    at = place_of("s3://key:secret@bucket/deep?scheme=http&region=a%20b")
    assert at.access.fs == (("region", "a b"), ("scheme", "http"))
    assert ObjectFolder(at).shown == "s3://***@bucket/deep"
    assert place_of("file:///a/b").root == "/a/b"


def test_a_manifest_of_a_later_release_is_refused(tmp_path: Path) -> None:
    found = json.loads(RebuildManifest("s", 0, 9, {"records": 1}, ()).to_json())
    with pytest.raises(JobFailed, match="is of format keelog-rebuild 2, not"):
        parse_manifest(json.dumps({**found, "format_version": 2}).encode(), "here")
    with pytest.raises(BadOption, match="is a folder"):
        read_rebuild(str(tmp_path))
