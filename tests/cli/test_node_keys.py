"""Keys of the command line: every command that talks to a node comes with them."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from keelog.cli import contexts
from keelog.cli.main import run
from node.access.curve import write_pair
from tests.cli.tree import leaves
from tests.support.keyed_node import KeyedNode

KEYS = {"--client-key", "--server-key"}
ALSO_BY_ADDRESS = ("spark export", "spark stats")
"""They have no --node: their STORE may be the address of a node."""
NO_CONNECTION = ("config show", "context add")
"""They show or keep an address."""
WORDS = {
    "health": "health --wait 30",
    "status": "status",
    "top": "top --once --interval 0.05",
    "topic create": "topic create plums",
    "topic ls": "topic ls",
    "topic describe": "topic describe figs",
    "topic rm": "topic rm plums --yes",
    "produce": "produce figs --file {new}/lines",
    "consume": "consume figs --until-end",
    "export": "export figs --csv {new}/figs.csv",
    "group ls": "group ls",
    "group reset": "group reset billing --topic figs --to start",
    "group describe": "group describe billing",
    "group rm": "group rm billing --yes",
    "user create": "user create alice",
    "user show": "user show alice",
    "user ls": "user ls",
    "user set": "user set alice --disable",
    "user import": "user import {new}/plain_acl.json",
    "acl allow": "acl allow alice Topic:figs pub",
    "acl deny": "acl deny alice Topic:dates pub",
    "acl ls": "acl ls alice",
    "acl check": "acl check operator pub Topic:figs",
    "acl rm": "acl rm alice Topic:figs --yes",
    "user rm": "user rm alice --yes",
    "dead ls": "dead ls",
    "dead resend": "dead resend nobodys --all",
    "msg find": "msg find --topic figs --key k",
    "msg get": "msg get {msg_id}",
    "topic purge": "topic purge figs --before 1 --yes",
    "diag": "diag -o {new}/diag.zip",
    "bench send": "bench send --count 64 --warm-up 0s",
    "bench consume": "bench consume --stored 64 --count 64 --warm-up 0s",
    "bench e2e": "bench e2e --count 64 --warm-up 0s",
    "bench mixed": "bench mixed --rate 100 --count 50 --finds 1 --warm-up 0s",
}
"""Each command as it is asked, in an order in which one finds what another has made."""
FOUND_NOTHING = 3
NOTHING_THERE = {"dead resend"}


def takes_node(path: str) -> bool:
    return any("--node" in param.opts for param in leaves()[path].params)


def test_every_command_that_takes_a_node_takes_keys() -> None:
    asked = [path for path in leaves() if takes_node(path)]
    assert len(asked) > 30
    for path in (*asked, *ALSO_BY_ADDRESS):
        known = {name for param in leaves()[path].params for name in param.opts}
        assert known >= KEYS, path
    assert set(asked) == {*WORDS, *NO_CONNECTION}, "give each command its words here"


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[KeyedNode]:
    with KeyedNode(tmp_path_factory.mktemp("cli-keys") / "store") as node:
        yield node


@pytest.mark.process
def test_each_of_them_talks_to_a_node_with_keys(
    node: KeyedNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plain_acl.json").write_text('{"accounts": []}')
    (tmp_path / "lines").write_text("sent")
    with node.connected() as client:
        client.create_topic("figs", 1)
        msg_id = client.send("figs", b"fig", keys="k").msg_id
    keys = ["--client-key", str(node.key), "--server-key", node.server_key]
    for path, text in WORDS.items():
        words = text.format(new=tmp_path, msg_id=msg_id).split()
        code = run([*words, "--node", node.endpoint, *keys])
        said = capsys.readouterr()
        assert code == (FOUND_NOTHING if path in NOTHING_THERE else 0), (path, said.err)


@pytest.mark.process
def test_parquet_and_a_bundle_come_with_the_keys_too(
    node: KeyedNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with node.connected() as client:
        client.send("exported", b"one")
    keys = ["--client-key", str(node.key), "--server-key", node.server_key]
    where = ["--node", node.endpoint, *keys]
    assert run(["export", "exported", "--parquet", str(tmp_path / "out"), *where]) == 0
    assert list((tmp_path / "out").rglob("*.parquet"))
    copy = tmp_path / "copy.key_secret"
    copy.write_bytes(node.key.read_bytes())
    copy.chmod(0o644)
    where[where.index(str(node.key))] = str(copy)
    capsys.readouterr()
    assert run(["diag", "-o", str(tmp_path / "diag.zip"), *where]) == 1
    assert f"chmod 600 {copy}" in capsys.readouterr().err


@pytest.mark.process
def test_without_keys_a_command_says_what_to_do(
    node: KeyedNode, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["topic", "ls", "--node", node.endpoint]) == 4
    assert "a node with keys needs" in capsys.readouterr().err


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[contexts.NodeAddress]:
    """Where commands would connect to; contexts are in a folder of the test's own."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.delenv(contexts.NODE_VARIABLE, raising=False)
    monkeypatch.delenv(contexts.CONTEXT_VARIABLE, raising=False)
    asked: list[contexts.NodeAddress] = []

    def connect(node: str, timeout: float | None = None) -> None:
        asked.append(
            contexts.NodeAddress(node, "", "", *(one or "" for one in contexts.keys_of(node)))
        )
        raise ConnectionRefusedError(111, os.strerror(111))

    monkeypatch.setattr("keelog.cli.node.topics.connect", connect)
    return asked


def test_options_go_before_the_keys_of_a_context_and_both_add_up(
    place: list[contexts.NodeAddress], tmp_path: Path
) -> None:
    pair, other = write_pair(tmp_path, "me"), write_pair(tmp_path, "other")
    key = str(tmp_path / "me.key_secret")
    add = ["context", "add", "prod", "--node", "tcp://a:1", "--server-key", pair.public]
    assert run([*add, "--client-key", key]) == 0
    for words, wanted in (
        (["-c", "prod", "topic", "ls"], (key, pair.public)),
        (["-c", "prod", "topic", "ls", "--client-key", "x"], ("x", pair.public)),
        (["-c", "prod", "topic", "ls", "--server-key", other.public], (key, other.public)),
        (["topic", "ls", "--node", "b:1"], ("", "")),
        (["topic", "ls", "--client-key", "x", "--server-key", "y", "--node", "b:1"], ("x", "y")),
        (["topic", "ls", "--node", "b:1", "--server-key", "y", "--client-key", "x"], ("x", "y")),
    ):
        run(words)
        assert (place[-1].key, place[-1].server_key) == wanted, words


@pytest.mark.parametrize("path", ["topic ls", "spark stats tcp://b:1"])
def test_one_key_alone_is_a_usage_error(
    place: list[contexts.NodeAddress], path: str, capsys: pytest.CaptureFixture[str]
) -> None:
    for one, missing in (("--client-key", "--server-key"), ("--server-key", "--client-key")):
        assert run([*path.split(), one, "x"]) == 2
        assert f"{missing} is missing" in capsys.readouterr().err
    assert not place


def test_keys_without_a_node_are_refused_by_a_load(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["bench", "send", "--client-key", "x", "--server-key", "y"]) == 2
    assert "keys are for a node that runs" in capsys.readouterr().err
