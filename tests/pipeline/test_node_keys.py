"""Reading from and writing to a node with keys: where they come from, and who never sees them."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from keelog.pipeline import errors
from keelog.pipeline.node_keys import NodeKeys
from keelog.pipeline.options import parse_options, parse_sink_options
from keelog.pipeline.resolve import plan_parts
from node.access.curve import write_pair
from protocol.access.key_files import KeyPair, parse_pair
from protocol.errors import MqError
from tests.support.keyed_node import KeyedNode

ADDRESS = "tcp://127.0.0.1:7850"
READ_PART = """
import pickle, sys
from keelog.pipeline.read.parts import read_part
parts = pickle.load(open(sys.argv[1], "rb"))
print(sum(batch.num_rows for part in parts for batch in read_part(part)))
"""
SPARK_S_MAX = 240


@pytest.fixture
def pair(tmp_path: Path) -> KeyPair:
    return write_pair(tmp_path, "me")


def parse(**options: str) -> NodeKeys | None:
    return parse_options({"path": ADDRESS, **options}).stores[0].access.keys


def refused(kind: type[MqError], **options: str) -> str:
    with pytest.raises(kind) as caught:
        parse(**options)
    return str(caught.value)


def test_the_plan_has_the_path_of_the_secret_key_and_the_public_key_of_the_node(
    pair: KeyPair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    server = write_pair(tmp_path, "server").public
    wanted = NodeKeys(str(tmp_path / "me.key_secret"), server)
    for key in ("me.key_secret", f"file://{tmp_path}/me.key_secret", wanted.key):
        for server_key in (server, "server.key", f"file://{tmp_path}/server.key"):
            assert parse(key=key, serverKey=server_key) == wanted
    assert parse(KEY=wanted.key, ServerKey=server) == wanted
    assert parse() is None
    sink = {"node": ADDRESS, "topic": "t", "key": wanted.key, "serverkey": server}
    options = parse_sink_options(sink, [("body", "string")], overwrite=False)
    assert options.keys == wanted
    shown = pickle.dumps(options) + pickle.dumps(parse(key=wanted.key, serverKey=server))
    assert pair.secret.encode() not in shown


def test_one_key_alone_a_folder_with_keys_and_an_address_are_refused(
    pair: KeyPair, tmp_path: Path
) -> None:
    key = str(tmp_path / "me.key_secret")
    assert "serverKey is missing" in refused(errors.BadOption, key=key)
    assert "key is missing" in refused(errors.BadOption, serverKey=pair.public)
    assert "address" in refused(errors.BadOption, key="s3://b/key", serverKey=pair.public)
    store = {"path": str(tmp_path), "key": key, "serverKey": pair.public}
    with pytest.raises(errors.BadOption, match="none of the stores is one"):
        parse_options(store)


def test_a_file_that_is_absent_or_open_to_others_is_named_with_the_machine(
    pair: KeyPair, tmp_path: Path
) -> None:
    key, host = tmp_path / "me.key_secret", os.uname().nodename
    absent = refused(errors.BadKeyFile, key=str(tmp_path / "other"), serverKey=pair.public)
    assert absent.startswith("[KEELOG_BAD_KEY] the key file ")
    assert f"other cannot be read: No such file or directory (on {host})" in absent
    key.chmod(0o640)
    wide = refused(errors.BadKeyFile, key=str(key), serverKey=pair.public)
    assert f"is open to other users, with mode 0640 (on {host})" in wide
    assert "chmod 600" in wide


def test_a_secret_key_in_the_place_of_its_path_is_in_no_error(pair: KeyPair) -> None:
    text = refused(errors.BadKeyFile, key=pair.secret, serverKey=pair.public)
    assert "a key itself" in text
    assert pair.secret not in text


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedNode]:
    with KeyedNode(tmp_path_factory.mktemp("keyed") / "store") as node:
        with node.connected() as client:
            for number in range(20):
                client.send("figs", b"fig %d" % number)
        yield node


def planned(node: KeyedNode, key: Path, folder: Path) -> list[str]:
    """The command of an executor that reads what the driver has planned."""
    options = {"subscribe": "figs", "key": str(key), "serverKey": node.server_key}
    plan = folder / "plan"
    plan.write_bytes(pickle.dumps(plan_parts(parse_options({"path": node.endpoint, **options}))))
    return [sys.executable, "-c", READ_PART, str(plan)]


@pytest.mark.process
def test_an_executor_reads_the_key_from_its_own_file(node: KeyedNode, tmp_path: Path) -> None:
    key = tmp_path / "here.key_secret"
    key.touch(0o600)
    key.write_bytes(node.key.read_bytes())
    command = planned(node, key, tmp_path)

    def ran() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert ran().stdout == "20\n"
    key.chmod(0o644)
    assert "[KEELOG_BAD_KEY]" in ran().stderr
    assert "is open to other users" in ran().stderr
    key.unlink()
    assert "here.key_secret cannot be read: No such file" in ran().stderr


@pytest.mark.process
def test_a_stranger_and_a_client_without_keys_hear_what_to_do(
    node: KeyedNode, tmp_path: Path
) -> None:
    write_pair(tmp_path, "mallory")
    with pytest.raises(MqError) as caught:
        planned(node, tmp_path / "mallory.key_secret", tmp_path)
    assert str(caught.value).startswith("[KEELOG_NODE_REFUSED] ")
    assert "does not know the key of this client" in str(caught.value)
    with pytest.raises(MqError) as caught:
        plan_parts(parse_options({"path": node.endpoint, "fetch.timeoutMs": "2000"}))
    assert str(caught.value).startswith("[KEELOG_NODE_UNREACHABLE]")
    assert "serverKey" in str(caught.value)


@pytest.mark.process
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
def test_spark_reads_writes_and_follows_a_node_with_keys_and_shows_no_secret(
    node: KeyedNode, tmp_path: Path
) -> None:
    job = Path(__file__).with_name("keyed_job.py")
    command = [sys.executable, str(job), node.endpoint, str(node.key), node.server_key]
    done = subprocess.run(
        [*command, str(tmp_path)],
        capture_output=True, text=True, check=False, timeout=SPARK_S_MAX,
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout.splitlines()[-1])
    figs = [f"fig {number}" for number in range(20)]
    assert result["found"] == sorted([*figs, *(str(number) for number in range(100))])
    with node.connected() as client:
        copied = client.tail("copied", "earliest", until_end=True)
        assert sorted(message.body.decode() for message in copied) == sorted(figs)
    secret = parse_pair(node.key.read_bytes(), "").secret
    assert "BatchScan" in result["shown"]
    assert "SparkListenerEnvironmentUpdate" in result["shown"]
    assert secret not in result["shown"] + done.stdout + done.stderr
