"""A server that speaks S3: what pyarrow sends and understands is real here."""

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest
from pyarrow import fs

from pipeline.errors import SourceError
from tests.pipeline.facts_as_rows import options_for, read_rows
from tests.support.golden import STORES, GetStore, Row, facts
from tests.support.node import wait_until

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
    with pytest.raises(SourceError, match=r"\[KEELOG_STORE_UNREADABLE\] s3://none/x.*NO_SUCH"):
        read_rows(path="s3://none/x", **through)
