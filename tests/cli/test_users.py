"""`keelog user` and `keelog acl`, at a node that runs and at a store whose node does not."""

import io
import json
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from keelog.cli.access.users import GENERATED_CHARS
from keelog.cli.main import run
from node.access.users_file import read_users, users_path
from node.runtime.locks import StoreLock
from tests.support.node import RunningNode

SECRET = "canary-secret"
Cli = Callable[..., Any]


@pytest.fixture
def secret(tmp_path: Path) -> str:
    path = tmp_path / "secret"
    path.write_text(f"{SECRET}\nmore\n")
    return str(path)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store at rest, as far as these commands look at one."""
    root = tmp_path / "store"
    (root / "commitlog").mkdir(parents=True)
    (root / "keelog").mkdir()
    (root / "lock").touch()
    return root


def caller(capsys: pytest.CaptureFixture[str], *where: str) -> Cli:
    def call(*words: str, code: int = 0) -> Any:
        assert run([*words, *where, "--format", "json"]) == code, capsys.readouterr().err
        found = capsys.readouterr()
        assert SECRET not in found.out + found.err
        return (json.loads(found.out) if found.out else None, found.err) if code < 2 else found.err

    return call


@pytest.fixture
def cli(root: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return caller(capsys, "--store", str(root))


def test_a_password_is_made_and_shown_once(cli: Cli, root: Path) -> None:
    made, err = cli("user", "create", "billing")
    assert len(made["password"]) == GENERATED_CHARS
    assert "shown once" in err
    assert read_users(root)[0].users["billing"].secret == made["password"]
    for words in (("user", "show", "billing"), ("user", "ls"), ("acl", "ls")):
        assert made["password"] not in str(cli(*words))
    again, _ = cli("user", "set", "billing", "--new-password")
    assert again["password"] != made["password"]
    assert stat.S_IMODE(users_path(root).stat().st_mode) == 0o600


def test_a_password_comes_from_the_first_line_of_a_file_or_of_stdin(
    cli: Cli, root: Path, secret: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, _ = cli("user", "create", "billing", "--password-file", secret)
    assert "password" not in made
    assert made["has_password"] is True
    assert read_users(root)[0].users["billing"].secret == SECRET
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"another-secret\r\n")))
    cli("user", "set", "billing", "--password-file", "-")
    assert read_users(root)[0].users["billing"].secret == "another-secret"


@pytest.mark.parametrize(("text", "why"), [(b"\nlater\n", "empty"), (b"\xff\xff", "not UTF-8")])
def test_a_file_without_a_password_changes_nothing(
    cli: Cli, root: Path, tmp_path: Path, secret: str, text: bytes, why: str
) -> None:
    cli("user", "create", "billing", "--password-file", secret)
    file = tmp_path / "other"
    file.write_bytes(text)
    assert why in cli("user", "set", "billing", "--password-file", str(file), code=2)
    assert read_users(root)[0].users["billing"].secret == SECRET


def test_a_prompt_needs_a_terminal(cli: Cli) -> None:
    assert "not a terminal" in cli("user", "create", "billing", "--prompt", code=2)


def test_no_option_takes_a_password(cli: Cli, root: Path) -> None:
    for word in ("--password", "--secret"):
        assert word in cli("user", "create", "billing", word, SECRET[:6], code=2)
    assert not read_users(root)[0].users


def test_users_are_made_shown_changed_and_removed(cli: Cli, root: Path, secret: str) -> None:
    cli("user", "create", "operator", "--super", "--password-file", secret)
    cli("user", "create", "billing", "--password-file", secret)
    found, _ = cli("user", "ls")
    assert [(one["name"], one["type"], one["status"]) for one in found] == [
        ("billing", "Normal", "enable"),
        ("operator", "Super", "enable"),
    ]
    cli("user", "set", "billing", "--disable")
    assert cli("user", "show", "User:billing")[0]["status"] == "disable"
    cli("user", "set", "billing", "--enable", "--super")
    assert cli("user", "show", "billing")[0]["type"] == "Super"
    assert cli("user", "rm", "billing", "--yes")[0] == {
        "name": "billing", "deleted": True, "entries": 0,
    }  # fmt: skip
    assert set(read_users(root)[0].users) == {"operator"}


def test_what_cannot_be_done_ends_with_the_code_of_its_kind(cli: Cli, secret: str) -> None:
    cli("user", "create", "billing", "--password-file", secret)
    assert "existed" in cli("user", "create", "billing", code=1)[1]
    for words in (("show",), ("set", "--disable"), ("rm", "--yes")):
        assert "nobody" in cli("user", words[0], "nobody", *words[1:], code=3)
    assert "nothing is to be changed" in cli("user", "set", "billing", code=2)
    assert "--yes" in cli("user", "rm", "billing", code=2)
    assert "is not an action" in cli("acl", "allow", "billing", "Topic:t", "pub,sbu", code=2)
    assert "resource is null" in cli("acl", "allow", "billing", "Queue:t", "pub", code=1)[1]
    assert "ip is invalid" in cli(
        "acl", "allow", "billing", "Topic:t", "pub", "--from", "*", code=1
    )[1]  # fmt: skip
    assert "no such entry" in cli("acl", "rm", "billing", "--yes", code=3)


def test_a_store_whose_node_runs_is_left_to_the_node(cli: Cli, root: Path) -> None:
    lock = StoreLock.acquire(root)
    try:
        assert "is held by another process" in cli("user", "ls", code=6)
    finally:
        lock.release()


def entries(cli: Cli, user: str) -> list[tuple[str, str, list[str]]]:
    found, _ = cli("acl", "ls", user)
    return [(one["decision"], one["resource"], one["actions"]) for one in found]


def test_a_list_is_kept_entry_by_entry(cli: Cli, secret: str) -> None:
    cli("user", "create", "billing", "--password-file", secret)
    made, err = cli("acl", "allow", "billing", "Topic:orders*", "SUB,pub", "--from", "10.0.0.0/8")
    assert made == {
        "user": "billing", "policy": "Custom", "decision": "Allow", "resource": "Topic:orders*",
        "actions": ["Pub", "Sub"], "sources": ["10.0.0.0/8"],
    }  # fmt: skip
    assert not err
    _, err = cli("acl", "deny", "User:billing", "Topic:orders*", "all")
    assert "replaced: Allow Pub, Sub of Topic:orders* from 10.0.0.0/8" in err
    cli("acl", "allow", "billing", "Topic:*", "sub", "--default")
    assert entries(cli, "billing") == [
        ("Deny", "Topic:orders*", ["All"]),
        ("Allow", "Topic:*", ["Sub"]),
    ]
    cli("acl", "rm", "billing", "Topic:orders*", "--yes")
    assert cli("acl", "rm", "billing", "--yes")[0] == {"user": "billing", "deleted": 1}
    assert entries(cli, "billing") == []


def test_a_check_names_the_entry_that_decides(cli: Cli, secret: str) -> None:
    cli("user", "create", "billing", "--password-file", secret)
    cli("acl", "allow", "billing", "Topic:orders*", "pub", "--from", "10.0.0.0/8")
    cli("acl", "deny", "billing", "Topic:orders-secret", "pub")
    inside = ("--from", "::ffff:10.1.2.3")
    found, _ = cli("acl", "check", "billing", "pub", "Topic:orders", *inside)
    assert found["allowed"] is True
    assert found["entry"]["resource"] == "Topic:orders*"
    found, _ = cli("acl", "check", "billing", "pub", "Topic:orders-secret", *inside, code=1)
    assert (found["allowed"], found["why"]) == (False, "Deny Pub of Topic:orders-secret")
    found, _ = cli("acl", "check", "billing", "pub", "Topic:orders", code=1)
    assert (found["why"], found["entry"]) == ("no entry matches", None)
    found, _ = cli("acl", "check", "billing", "sub,pub", "Topic:orders", *inside)
    assert found["allowed"] is True
    cli("user", "set", "billing", "--super")
    assert cli("acl", "check", "billing", "delete", "Topic:any")[0]["allowed"] is True
    cli("user", "set", "billing", "--disable")
    assert cli("acl", "check", "billing", "delete", "Topic:any", code=1)[0]["allowed"] is False
    assert "names several" in cli("acl", "check", "billing", "pub", "Topic:o*", code=2)


PLAIN: dict[str, Any] = {
    "globalWhiteRemoteAddresses": ["10.10.103.*"],
    "accounts": [
        {
            "accessKey": "RocketMQ", "secretKey": SECRET, "whiteRemoteAddress": "192.168.0.*",
            "admin": False, "defaultTopicPerm": "DENY", "defaultGroupPerm": "SUB",
            "topicPerms": ["topicA=DENY", "topicB=PUB|SUB", "topicC = SUB"],
            "groupPerms": ["groupA=DENY"],
        },
        {"accessKey": "rocketmq2", "secretKey": SECRET, "whiteRemoteAddress": "", "admin": True},
    ],
}  # fmt: skip


def test_accounts_of_rocketmqs_first_lists_become_what_its_migration_makes(
    cli: Cli, tmp_path: Path, secret: str
) -> None:
    file = tmp_path / "plain_acl.json"
    file.write_text(json.dumps(PLAIN))
    cli("user", "create", "rocketmq2", "--password-file", secret)
    found, err = cli("user", "import", str(file))
    assert found == [
        {"name": "RocketMQ", "imported": True}, {"name": "rocketmq2", "imported": False},
    ]  # fmt: skip
    assert "10.10.103.*" in err
    assert "192.168.0.*" in err
    rows, _ = cli("acl", "ls", "RocketMQ")
    keys = ("policy", "decision", "resource", "actions")
    assert [tuple(row[key] for key in keys) for row in rows] == [
        ("Custom", "Deny", "Topic:topicA", ["All"]),
        ("Custom", "Allow", "Topic:topicB", ["Pub", "Sub"]),
        ("Custom", "Allow", "Topic:topicC", ["Sub"]),
        ("Custom", "Deny", "Group:groupA", ["All"]),
        ("Default", "Deny", "Topic:*", ["All"]),
        ("Default", "Allow", "Group:*", ["Sub"]),
    ]
    assert cli("user", "show", "rocketmq2")[0]["type"] == "Normal"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (f"accounts:\n- accessKey: a\n  secretKey: {SECRET}\n", "no reader for YAML"),
        ("[]", "not a plain_acl"),
        (json.dumps({"accounts": [{"accessKey": "a"}]}), "secretKey is missing"),
        (json.dumps({"accounts": [{**PLAIN["accounts"][0], "topicPerms": ["t=ANY"]}]}), "'ANY'"),
        (json.dumps({"accounts": [{**PLAIN["accounts"][0], "topicPerms": ["t"]}]}), "'t'"),
    ],
)
def test_a_file_that_cannot_be_imported_changes_nothing(
    cli: Cli, root: Path, tmp_path: Path, text: str, why: str
) -> None:
    file = tmp_path / "plain_acl.yml"
    file.write_text(text)
    assert why in cli("user", "import", str(file), code=2)
    assert not read_users(root)[0].users


@pytest.mark.process
def test_a_running_node_does_the_same_and_its_secrets_stay_in_their_file(
    shared_node: RunningNode, capsys: pytest.CaptureFixture[str], secret: str
) -> None:
    cli = caller(capsys, "--node", shared_node.endpoint)
    cli("user", "create", "cli-user", "--password-file", secret)
    assert "existed" in cli("user", "create", "cli-user", code=1)[1]
    cli("acl", "allow", "cli-user", "Topic:orders*", "pub")
    assert cli("acl", "check", "cli-user", "pub", "Topic:orders-eu")[0]["allowed"] is True
    assert read_users(shared_node.root)[0].users["cli-user"].secret == SECRET
    log = (users_path(shared_node.root).parent / "audit.log").read_text().splitlines()
    assert [(one["operation"], one["outcome"]) for one in map(json.loads, log)][-3:] == [
        ("create_user", "done"), ("create_user", "refused"), ("create_acl", "done"),
    ]  # fmt: skip
    assert SECRET not in "".join(log)
    cli("user", "rm", "cli-user", "--yes")
    cli("user", "show", "cli-user", code=3)
