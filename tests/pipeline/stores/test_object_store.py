"""Stores behind pyarrow.fs: the rows of the files, by ranges, with the log's end found as ever."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from pyarrow import fs

from keelog.pipeline.options import parse_options
from keelog.pipeline.read.parts import read_part
from keelog.pipeline.resolve import plan_parts
from keelog.pipeline.stores import object_store
from keelog.pipeline.stores.access import Access
from node.store.file_cache import OpenFile
from node.store.opening import StoppedStore
from protocol.errors import MqError
from tests.pipeline.facts_as_rows import options_for, plain_rows, read_rows
from tests.support.golden import GetStore, Row, facts

NAMES = ("small-clean", "small-torn", "trimmed", "cq-missing")
READS: tuple[dict[str, str], ...] = (
    {"minPartitions": "5"},
    {"subscribePattern": ".*", "minPartitions": "3"},
    {"table": "queues"},
    {"table": "index"},
)
Put = Callable[[Path], str]


@pytest.fixture
def put(monkeypatch: pytest.MonkeyPatch) -> Put:
    """`put(folder)`: the folder as a prefix of a bucket; an address for it."""
    folders: dict[str, Path] = {}

    def open_filesystem(root: str, _access: Access) -> tuple[fs.FileSystem, str]:
        folder = folders[root]
        system = fs.SubTreeFileSystem(str(folder.parent), fs.LocalFileSystem())
        return system, folder.name

    def put_there(folder: Path) -> str:
        address = f"s3://bucket{folder}"
        folders[address] = folder
        return address

    monkeypatch.setattr(object_store, "open_filesystem", open_filesystem)
    object_store._objects.cache_clear()
    return put_there


@pytest.fixture
def _no_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: OpenFile) -> memoryview:
        raise AssertionError(f"{self.path} was mapped")

    monkeypatch.setattr(OpenFile, "view", refuse)


def named(address: str, **options: str) -> dict[str, str]:
    return {"nodes": json.dumps({"n": address}), **options}


def keyed(rows: list[Row]) -> list[str]:
    return sorted(json.dumps(row, default=repr, sort_keys=True) for row in rows)


@pytest.mark.usefixtures("_no_maps")
@pytest.mark.parametrize("name", NAMES)
def test_rows_are_those_of_the_files_and_nothing_is_mapped(
    golden: GetStore, put: Put, name: str
) -> None:
    root = golden(name)
    address = put(root)
    for options in READS:
        more = options_for(name, facts(name), **options)
        wanted = read_rows(**named(str(root), **more))
        small = {"fetch.windowBytes": "65536", "fetch.inFlight": "3"}
        assert keyed(read_rows(**named(address, **more, **small))) == keyed(wanted), options


def test_errors_name_the_object(golden_copy: GetStore, put: Put) -> None:
    root = golden_copy("small-clean")
    address = put(root)
    segment = sorted((root / "commitlog").iterdir())[1]
    parts = plan_parts(parse_options({"path": address}))
    segment.unlink()
    with pytest.raises(MqError) as caught:
        [plain_rows(batch) for part in parts for batch in read_part(part)]
    assert str(caught.value).startswith(
        f"[KEELOG_DATA_LOSS] {address}/commitlog/{segment.name} was deleted"
    )


def test_an_object_that_became_shorter_is_named(golden_copy: GetStore, put: Put) -> None:
    root = golden_copy("small-clean")
    address = put(root)
    segment = sorted((root / "commitlog").iterdir())[1]
    parts = plan_parts(parse_options({"path": address}))
    with segment.open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(MqError, match=rf"\[KEELOG_STORE_DAMAGED\] {address}/commitlog/"):
        [plain_rows(batch) for part in parts for batch in read_part(part)]


def test_a_prefix_without_a_store_is_refused(tmp_path: Path, put: Put) -> None:
    (tmp_path / "empty").mkdir()
    for folder, words in ((tmp_path / "empty", "holds no commitlog/"), (tmp_path / "no", "exist")):
        with pytest.raises(MqError, match=rf"\[KEELOG_NOT_A_STORE\].*{words}"):
            read_rows(path=put(folder))


def test_small_reads_of_a_plan_come_from_blocks(
    golden: GetStore, put: Put, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = golden("default-sizes")
    asked: list[int] = []
    read = object_store._Objects.read

    def counting(self: object_store._Objects, below: str, position: int, count: int) -> bytes:
        asked.append(count)
        return read(self, below, position, count)

    monkeypatch.setattr(object_store._Objects, "read", counting)
    plan_parts(parse_options(named(put(root), subscribePattern=".*")))
    with StoppedStore(root, parse_options(named(str(root))).settings) as store:
        queues = len(store.queues())
    assert len(asked) < 12 * queues
    assert min(asked) > 20


@pytest.mark.parametrize(
    ("address", "condition"),
    [("s3://", "BAD_OPTION"), ("hdfs://nowhere.invalid:1/x", "STORE_UNREADABLE")],
)
def test_what_pyarrow_refuses_is_said_with_the_address(address: str, condition: str) -> None:
    with pytest.raises(MqError) as caught:
        read_rows(**named(address))
    text = str(caught.value)
    assert text.startswith(f"[KEELOG_{condition}]")
    assert address in text


def as_read(**options: str) -> list[object]:
    parts = plan_parts(parse_options(options))
    return [batch.to_pylist() for part in parts for batch in read_part(part)]


def test_credentials_in_an_address_open_it_and_are_shown_nowhere(
    put: Put,
    golden_copy: GetStore,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[str] = []
    opened = object_store.open_filesystem

    def open_filesystem(address: str, access: Access) -> tuple[fs.FileSystem, str]:
        asked.append(address)
        return opened(address.replace("KEY:SeCrEt@", ""), access)

    monkeypatch.setattr(object_store, "open_filesystem", open_filesystem)
    torn, clean = (put(golden_copy(name)) for name in ("small-torn", "small-clean"))
    segment = Path(clean.removeprefix("s3://bucket")) / "commitlog" / ("0" * 20)
    with segment.open("r+b") as file:
        file.seek(4)
        file.write(b"????")
    torn, clean = (at.replace("s3://", "s3://KEY:SeCrEt@") for at in (torn, clean))
    shown = f"{as_read(path=torn)} {as_read(path=clean, onCorruptRecord='report')}"
    assert asked[:1] == [torn]
    assert asked[-1:] == [clean]
    as_read(path=clean, onCorruptRecord="skip")
    with pytest.raises(MqError) as caught:
        as_read(path=clean)
    for text in (shown, str(caught.value)):
        assert "SeCrEt" not in text
        assert "s3://***@bucket" in text
    assert "SeCrEt" not in caplog.text
    for warning in ("the log of s3://***@bucket", "damage is passed over: s3://***@bucket"):
        assert warning in caplog.text


def test_a_bucket_with_credentials_names_its_rows_without_them() -> None:
    parsed = parse_options({"path": "s3://KEY:SeCrEt@bucket"})
    assert [(at.node, at.root) for at in parsed.stores] == [
        ("***@bucket", "s3://KEY:SeCrEt@bucket")
    ]
