"""Named nodes: the file, who may read it, and which node a command talks to."""

import json
import os
import pwd
from pathlib import Path

import pytest

from keelog.cli.contexts import Context, Contexts, load, path_of, resolve, save
from keelog.cli.main import run
from node.runtime.run_files import write_control
from node.runtime.state_page import run_dir
from protocol.addresses import DEFAULT_NODE
from protocol.errors import BadRequest, NotFound

KNOWN = Contexts(
    {"a": Context("tcp://a:1"), "b": Context("tcp://b:1"), "bare": Context("bare:1")}, "a"
)


@pytest.mark.parametrize(
    ("flag", "named", "environment", "current", "url", "origin"),
    [
        ("tcp://f:1", "b", {"KEELOG_NODE": "tcp://e:1"}, "a", "tcp://f:1", "flag"),
        (None, "b", {"KEELOG_NODE": "tcp://e:1"}, "a", "tcp://b:1", "flag"),
        (None, None, {"KEELOG_NODE": "tcp://e:1"}, "a", "tcp://e:1", "environment"),
        (None, None, {"KEELOG_CONTEXT": "b"}, "a", "tcp://b:1", "context"),
        ("f:1", None, {}, None, "tcp://f:1", "flag"),
        (None, None, {"KEELOG_NODE": "[::1]:1"}, None, "tcp://[::1]:1", "environment"),
        (None, "bare", {}, None, "tcp://bare:1", "flag"),
        (None, None, {}, "a", "tcp://a:1", "context"),
        (None, None, {"KEELOG_NODE": "", "KEELOG_CONTEXT": ""}, None, DEFAULT_NODE, "default"),
    ],
)
def test_flags_go_before_variables_variables_before_contexts_contexts_before_the_default(
    flag: str | None,
    named: str | None,
    environment: dict[str, str],
    current: str | None,
    url: str,
    origin: str,
) -> None:
    place = resolve(flag, named, environment, lambda: Contexts(KNOWN.named, current))
    assert (place.url, place.origin) == (url, origin)


@pytest.mark.parametrize("by", ["flag", "environment"])
def test_the_directory_of_a_store_names_the_local_socket_of_its_node(
    tmp_path: Path, by: str
) -> None:
    root = str(tmp_path)
    flag, variables = (root, {}) if by == "flag" else (None, {"KEELOG_NODE": root})
    with pytest.raises(NotFound, match="no node has run on"):
        resolve(flag, None, variables, Contexts)
    run_dir(tmp_path).mkdir(parents=True)
    write_control(tmp_path, "ipc://@keelog-1")
    assert resolve(flag, None, variables, Contexts).url == "ipc://@keelog-1"


def test_an_unknown_context_is_an_error_with_the_nearest_name() -> None:
    contexts = Contexts({"production": Context("tcp://a:1")})
    with pytest.raises(NotFound) as caught:
        resolve(None, "prodution", {}, lambda: contexts)
    assert caught.value.hint == "did you mean production?"
    with pytest.raises(NotFound):
        resolve(None, None, {"KEELOG_CONTEXT": "x"}, lambda: contexts)


def test_the_file_is_where_xdg_says(monkeypatch: pytest.MonkeyPatch) -> None:
    at_home = Path("/home/me/.config/keelog/contexts.toml")
    assert path_of({"HOME": "/home/me"}) == at_home
    assert path_of({"HOME": "/home/me", "XDG_CONFIG_HOME": "not/absolute"}) == at_home
    assert path_of({"XDG_CONFIG_HOME": "/etc/mine"}) == Path("/etc/mine/keelog/contexts.toml")


def test_without_a_home_there_is_no_context_and_none_can_be_added(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A container may have a user without an entry, or with the home of another one."""

    def no_entry(uid: int) -> object:
        raise KeyError(uid)

    closed = tmp_path / "root"
    closed.mkdir()
    may = os.access
    monkeypatch.setattr(os, "access", lambda path, how: path != str(closed) and may(path, how))
    assert path_of({"HOME": str(closed)}) is None
    look = os.stat

    def refuse(path: str | os.PathLike[str], **how: bool) -> os.stat_result:
        if str(path).startswith(f"{closed}/"):
            raise PermissionError(13, "Permission denied", str(path))
        return look(path, **how)

    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", refuse)
        assert path_of({"HOME": str(closed / "app")}) is None
    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    assert path_of({}) is None
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    for variable in ("KEELOG_NODE", "KEELOG_CONTEXT"):
        monkeypatch.delenv(variable, raising=False)
    assert run(["context", "ls"]) == 0
    assert resolve(None, None, {}, lambda: load(path_of({}))).url == DEFAULT_NODE
    assert run(["context", "add", "x", "--node", "tcp://127.0.0.1:1"]) == 2
    assert "set HOME or XDG_CONFIG_HOME" in capsys.readouterr().err


def test_what_is_saved_is_loaded_and_nobody_else_may_read_it(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "keelog" / "contexts.toml"
    odd = Context("tcp://a:1", 'a "quote", a \\, a \x7f, ü')
    save(path, Contexts({"x.y-z": odd, "b": Context("ipc:///run/k")}, "b"))
    assert load(path) == Contexts({"x.y-z": odd, "b": Context("ipc:///run/k")}, "b")
    path.chmod(0o644)
    save(path, Contexts({}, None))
    assert path.stat().st_mode & 0o777 == 0o600
    assert [one.name for one in path.parent.iterdir()] == [path.name]
    assert load(path) == Contexts()
    assert load(tmp_path / "none") == Contexts()


@pytest.mark.parametrize(
    "text", ["[", "contexts = 3", "[contexts.a]\nurl = 'x'", "[contexts]\na = 1", "current = 1"]
)
def test_a_file_that_holds_no_contexts_is_an_error_that_names_it(text: str, tmp_path: Path) -> None:
    path = tmp_path / "contexts.toml"
    path.write_text(text)
    with pytest.raises(BadRequest, match=str(path)):
        load(path)


def test_contexts_are_added_used_listed_and_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for name in ("KEELOG_NODE", "KEELOG_CONTEXT"):
        monkeypatch.delenv(name, raising=False)

    def node(*words: str) -> str:
        capsys.readouterr()
        assert run([*words, "config", "show"]) == 0
        return str(json.loads(capsys.readouterr().out.splitlines()[0])["value"])

    assert run(["context", "add", "a", "--node", "tcp://a:1"]) == 0
    assert run(["context", "add", "b", "--node", "tcp://b:1", "--use"]) == 0
    assert run(["context", "add", "b", "--node", "tcp://c:1"]) == 2, "it is there"
    assert run(["context", "add", "b c", "--node", "tcp://c:1"]) == 2, "no name"
    assert run(["context", "add", "d", "--node", "c"]) == 2, "no address"
    assert node() == "tcp://b:1"
    assert node("-c", "a") == "tcp://a:1"
    assert run(["-c", "x", "config", "show"]) == 3
    capsys.readouterr()
    assert run(["context", "ls"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["name"], row["current"]) for row in rows] == [("a", False), ("b", True)]
    assert run(["context", "use", "a"]) == 0
    assert node() == "tcp://a:1"
    assert run(["context", "rm", "a"]) == 0
    assert node() == DEFAULT_NODE
    assert run(["context", "use", "a"]) == 3
    assert run(["context", "use"]) == 2
    assert run(["context", "use", "--none"]) == 0
