"""A server that speaks S3: what pyarrow sends and understands is real here."""

import hashlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as pq
import pytest
from pyarrow import fs

from keelog.pipeline.jobs.export import export_here
from keelog.pipeline.jobs.export_files import MANIFEST, file_name
from keelog.pipeline.jobs.publication import ObjectFolder, read_rebuild
from keelog.pipeline.jobs.rebuild import rebuild
from keelog.pipeline.stores.access import place_of
from protocol.errors import MqError
from tests.pipeline.facts_as_rows import options_for, read_rows
from tests.pipeline.jobs.plain_engine import PlainEngine
from tests.pipeline.jobs.rebuild.test_rebuild import tree
from tests.support.golden import STORES, GetStore, Row, facts
from tests.support.node import wait_until
from tests.workers.test_rebuild import settings_of
from workers.rebuild import rebuild as rebuild_by_workers

pytest.importorskip(
    "moto", reason="pip install 'moto[server,s3]': 300 MB, so not part of the extras"
)
pytestmark = [pytest.mark.spark_long, pytest.mark.process]

NAMES = [name for name in STORES if name != "default-sizes"]
"""All but a file of 1 GiB of zeros: an object store has no holes."""
READS: tuple[dict[str, str], ...] = (
    {"minPartitions": "5"},
    {"subscribePattern": ".*"},
    {"table": "queues"},
    {"table": "index"},
)


@pytest.fixture(scope="module")
def endpoint() -> Iterator[dict[str, str]]:
    """The parameters of a file system on a server of this test."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def answers() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    os.environ |= {"AWS_ACCESS_KEY_ID": "x", "AWS_SECRET_ACCESS_KEY": "y"}
    try:
        wait_until(answers, "no server")
        yield {
            "endpoint_override": f"127.0.0.1:{port}",
            "scheme": "http",
            "region": "us-east-1",
        }
    finally:
        server.terminate()
        server.wait()


def keyed(rows: list[Row]) -> list[str]:
    return sorted(json.dumps(row, default=repr, sort_keys=True) for row in rows)


@pytest.mark.parametrize("name", NAMES)
def test_rows_are_those_of_the_files(golden: GetStore, endpoint: dict[str, str], name: str) -> None:
    system = fs.S3FileSystem(**endpoint, allow_bucket_creation=True)
    system.create_dir("bucket")
    fs.copy_files(str(golden(name)), f"bucket/deep/{name}", destination_filesystem=system)
    through = {f"fs.{key}": value for key, value in endpoint.items()}
    for options in READS:
        more = options_for(name, facts(name), **options)
        near = read_rows(nodes=json.dumps({"n": str(golden(name))}), **more)
        far = read_rows(nodes=json.dumps({"n": f"s3://bucket/deep/{name}"}), **more, **through)
        assert keyed(far) == keyed(near), options


def test_what_is_not_there_is_named(endpoint: dict[str, str]) -> None:
    through = {f"fs.{key}": value for key, value in endpoint.items()}
    with pytest.raises(MqError, match=r"\[KEELOG_STORE_UNREADABLE\] s3://none/x.*NO_SUCH"):
        read_rows(path="s3://none/x", **through)


def test_an_export_to_objects_counts_by_its_manifest_and_goes_on(
    golden: GetStore, endpoint: dict[str, str]
) -> None:
    system = fs.S3FileSystem(**endpoint, allow_bucket_creation=True)
    system.create_dir("exports")
    out = "s3://exports/deep/out?" + "&".join(f"{name}={text}" for name, text in endpoint.items())
    store, count = str(golden("small-clean")), len(facts("small-clean").messages)
    assert export_here(store, out).rows == count
    # What a run leaves that dies before its manifest.
    left = "exports/deep/out/topic=x/date=2026-01-01/" + file_name(2, 0, 0, "a" * 12, "b" * 12)
    system.open_output_stream(left).close()
    assert export_here(store, out).rows == 0
    assert system.get_file_info(left).type == fs.FileType.NotFound
    with system.open_input_stream(f"exports/deep/out/{MANIFEST}") as file:
        named = [found["path"] for found in json.loads(file.read())["files"]]
    tables = [
        pq.read_table(f"exports/deep/out/{path}", filesystem=system, partitioning=None)
        for path in named
    ]
    offsets = [offset for table in tables for offset in table["physicalOffset"].to_pylist()]
    assert sorted(offsets) == [fact["physicalOffset"] for fact in facts("small-clean").messages]


def test_a_rebuild_from_objects_into_objects_counts_by_its_manifest(
    golden_copy: GetStore, endpoint: dict[str, str]
) -> None:
    name, engine = "mixed-kinds", PlainEngine(times=2)
    root, settings = golden_copy(name), settings_of(name)
    system = fs.S3FileSystem(**endpoint, allow_bucket_creation=True)
    system.create_dir("rebuilds")
    fs.copy_files(str(root), "rebuilds/store", destination_filesystem=system)
    parameters = "?" + "&".join(f"{name}={text}" for name, text in endpoint.items())
    store, out = (f"s3://rebuilds/{part}{parameters}" for part in ("store", "deep/out"))
    # What a run leaves that dies before its manifest.
    left = ObjectFolder(place_of(out), "died")
    left.begin()
    left.write("consumequeue/x/0/0", [b"left"])
    left.write("_temporary/died/0", [b"left"])
    spark: Any = engine
    rebuild(spark, store, plan="shuffle", out=out, settings=settings, range_bytes=200_000)
    rebuild_by_workers(root, settings=settings)
    expected = {path: data for path, data in tree(root).items() if data is not None}
    files = read_rebuild(out).files
    assert {file.path for file in files} == set(expected)
    for file in files:
        with system.open_input_stream(f"rebuilds/deep/out/{file.path}") as stream:
            assert stream.read() == expected[file.path]
        assert file.sha256 == hashlib.sha256(expected[file.path]).hexdigest()
    selector = fs.FileSelector("rebuilds/deep/out")
    names = {info.base_name for info in system.get_file_info(selector)}
    assert names == {"consumequeue", "index", "_keelog_rebuild.json"}
