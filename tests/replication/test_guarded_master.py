"""A master whose users log in: replicas and consumers that do, that do not, and what is shown."""

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest

import keelog
from keelog.cli.main import run
from keelog.client.client import Client
from keelog.client.users import change_at, users_of
from keelog.replication.replica.tables import PARTS, fetch_tables
from node.access.own_credentials import OwnCredentials
from node.access.users_file import read_users
from node.runtime.run_files import FOLLOWING, read_follow_state
from protocol.access.changes import CREATE_ACL, CREATE_USER, DELETE_USER, UPDATE_USER, Change
from protocol.access.credentials import FIRST_USER_FORM, INNER_FORM, Credentials
from protocol.errors import NodeFollows, NotAllowed
from tests.support.cli import keelog_text
from tests.support.follower import HA, followers_place
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, SignedPeer, remoting_place

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("guarded-master")]
SMALL = f"mapped_file_size_commit_log={4 * 1024 * 1024}"
INNER = Credentials("inner", "canary-of-inner")
ADMIN = Credentials("admin", "canary-of-admin")
ALICE = Credentials("alice", "canary-of-alice")


def secret_file(path: Path, data: bytes) -> Path:
    path.touch(0o600)
    path.write_bytes(data)
    return path


def inner_setting(folder: Path, own: Credentials = INNER) -> str:
    file = secret_file(folder / f"{own.access_key}.json", INNER_FORM.text(own))
    return f"inner_client_authentication_credentials_file={file}"


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    folder = tmp_path_factory.mktemp("master")
    first = secret_file(folder / "first.json", FIRST_USER_FORM.text(ADMIN))
    settings = inner_setting(folder), f"init_authentication_user_file={first}"
    with RunningNode(
        folder / "store", (REMOTING, HA, SMALL, *settings), queue_workers=1, readers=1
    ) as running:
        make_alice(running.client)
        for number in range(20):
            running.client.send("orders", b"%d" % number)
        yield running


def make_alice(client: Client) -> None:
    body = json.dumps({"password": ALICE.secret}).encode()
    change_at(client, Change(CREATE_USER, "alice", body))
    change_at(
        client, Change(CREATE_ACL, "User:alice", acl("Topic:orders", "Group:billing", "Group:cli"))
    )


def acl(*resources: str) -> bytes:
    """The right to read them."""
    entries = [{"resource": one, "actions": ["Sub"], "decision": "Allow"} for one in resources]
    policies = [{"policyType": "Custom", "entries": entries}]
    return json.dumps({"subject": "User:alice", "policies": policies}).encode()


def test_a_start_makes_its_users_super_and_both_log_in(master: RunningNode) -> None:
    shown = {one["name"]: one["type"] for one in users_of(master.client, None)}
    assert shown == {"inner": "Super", "admin": "Super", "alice": "Normal"}
    for one in (INNER, ADMIN):
        with closing(SignedPeer(remoting_place(master.stderr), one.access_key, one.secret)) as peer:
            assert peer.ask(28, {}).code == 0


@pytest.mark.attack(69)
def test_no_process_log_setting_or_answer_shows_a_secret(
    master: RunningNode, capfd: pytest.CaptureFixture[str]
) -> None:
    supervisor = psutil.Process(master.pid)
    for one in (supervisor, *supervisor.children(recursive=True)):
        assert "canary-of" not in " ".join(one.cmdline())
        assert "canary-of" not in "".join(f"{k}={v}" for k, v in one.environ().items())
    with closing(SignedPeer(remoting_place(master.stderr), ADMIN.access_key, ADMIN.secret)) as peer:
        config = peer.ask(26, {}).body.decode()
    assert "innerClientAuthenticationCredentialsFile=" in config
    file = config.partition("innerClientAuthenticationCredentialsFile=")[2].splitlines()[0]
    name = "store.inner_client_authentication_credentials_file"
    assert run(["config", "show", "-X", f"{name}={file}"]) == 0
    assert run(["status", "--node", master.endpoint, "--json"]) == 0
    logs = [path.read_text("latin-1") for path in master.root.rglob("*.log")]
    assert "canary-of" not in "".join([config, master.stderr, capfd.readouterr().out, *logs])


def follow(master: RunningNode) -> list[str]:
    """The settings of a replica."""
    ha, remoting = followers_place(master), remoting_place(master.stderr)
    return [f"follow={ha[0]}:{ha[1]}", f"follow_remoting={remoting[0]}:{remoting[1]}", SMALL]


def test_a_replica_that_signs_has_all_tables_and_the_users_as_they_change(
    master: RunningNode, tmp_path: Path
) -> None:
    settings = [*follow(master), inner_setting(tmp_path), "auth_follow_master=true"]
    with RunningNode(tmp_path / "copy", settings, queue_workers=1, readers=1) as copy:
        wait_until(lambda: read_follow_state(copy.root).state == FOLLOWING, copy.stderr)
        wait_until(lambda: not any(read_follow_state(copy.root).metadata.values()), "no tables")
        assert "users" in read_follow_state(copy.root).metadata
        wait_until(
            lambda: read_users(copy.root)[0].users.keys() == {"inner", "admin", "alice"},
            "not all users",
        )
        mine, theirs = (read_users(root)[0] for root in (copy.root, master.root))
        assert mine.lists == theirs.lists
        assert mine.users["alice"].secret == ALICE.secret
        with pytest.raises(NodeFollows, match="auth_follow_master"):
            change_at(copy.client, Change(DELETE_USER, "alice"))
        body = b'{"password": "carol-of-master"}'
        change_at(master.client, Change(CREATE_USER, "carol", body))
        wait_until(lambda: "carol" in read_users(copy.root)[0].users, "no carol")
        change_at(master.client, Change(DELETE_USER, "carol"))
        wait_until(lambda: "carol" not in read_users(copy.root)[0].users, "carol stays")
        assert "canary-of" not in copy.stderr


@pytest.mark.attack(66)
@pytest.mark.parametrize("kind", ["none", "wrong secret", "unknown user", "disabled", "normal"])
def test_who_does_not_log_in_as_a_super_user_gets_no_table_and_hears_why(
    master: RunningNode, tmp_path: Path, kind: str
) -> None:
    """As a slave without innerClientAuthenticationCredentials."""
    own = {
        "none": None,
        "wrong secret": Credentials("inner", "wrong-secret"),
        "unknown user": Credentials("nobody", "wrong-secret"),
        "disabled": Credentials("disabled", "canary-of-disabled"),
        "normal": ALICE,
    }[kind]
    if kind == "disabled":
        body = {"password": own.secret if own else "", "userType": "Super"}
        change_at(master.client, Change(CREATE_USER, "disabled", json.dumps(body).encode()))
        off = json.dumps({"userStatus": "disable"}).encode()
        change_at(master.client, Change(UPDATE_USER, "disabled", off))
        wait_until(lambda: "disabled" in read_users(master.root)[0].users, "not there")
    file = None if own is None else inner_setting(tmp_path, own).partition("=")[2]
    credentials = None if file is None else OwnCredentials(file)
    host, port = remoting_place(master.stderr)
    try:
        found, is_refused = fetch_tables(f"{host}:{port}", (*PARTS, "users"), None, credentials)
    finally:
        if kind == "disabled":
            change_at(master.client, Change(DELETE_USER, "disabled"))
    assert is_refused
    for part in PARTS:
        assert "inner_client_authentication_credentials_file" in str(found[part]), found
    assert isinstance(found["users"], str)


@pytest.mark.attack(66)
def test_a_replica_without_credentials_copies_the_log_and_says_once_why_no_topics_come(
    master: RunningNode, tmp_path: Path
) -> None:
    with RunningNode(tmp_path / "copy", follow(master), queue_workers=1, readers=1) as copy:
        wait_until(
            lambda: (
                copy.log_state().flushed == master.log_state().appended > 0
                and "code 16" in str(read_follow_state(copy.root).metadata)
            ),
            "no log, or no reason",
        )
        wait_until(lambda: copy.stderr.count("a table of the master was not taken") > 0, "not told")
        assert copy.stderr.count("a table of the master was not taken") == 1
        assert "has to name a Super user of that node" in copy.stderr


# -- consumers of groups --------------------------------------------------------------------------


def test_a_consumer_that_logs_in_reads_and_one_that_may_not_is_told_what_to_try(
    master: RunningNode,
) -> None:
    with keelog.connect(master.endpoint, credentials=ALICE) as client:
        came = []
        with client.consumer("billing", "orders", start="earliest") as consumer:
            for message in consumer:
                came.append(message.body)
                message.ack()
                if len(came) == 20:
                    break
            consumer.commit()
        assert len(set(came)) == 20
        with (
            client.consumer("foreign", "orders") as other,
            pytest.raises(NotAllowed, match="no permission to access Group:foreign"),
        ):
            other.get(20)
        wrong = keelog.Credentials("alice", "wrong-secret")
        with (
            client.consumer("billing", "orders", credentials=wrong) as other,
            pytest.raises(NotAllowed, match="check signature failed") as caught,
        ):
            other.get(20)
        assert "wrong-secret" not in str(caught.value)
    with (
        master.client.consumer("billing", "orders") as stranger,
        pytest.raises(NotAllowed) as caught,
    ):
        stranger.get(20)
    assert "keelog.credentials_of" in caught.value.hint


def test_the_command_line_logs_in_by_options_or_by_its_context(
    master: RunningNode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    file = secret_file(tmp_path / "alice.password", f"{ALICE.secret}\n".encode())
    login = "--access-key", "alice", "--secret-file", str(file)
    read = "consume", "orders", "--group", "cli", "--from", "start", "-n", "1", "-f", "%v"
    done = keelog_text(master.endpoint, [*read, *login])
    assert (done.returncode, len(done.stdout) > 0) == (0, True), done.stderr
    done = keelog_text(master.endpoint, read)
    assert done.returncode == 1
    assert "--access-key USER --secret-file FILE" in done.stderr
    done = keelog_text("", ["context", "add", "here", "--node", master.endpoint, *login])
    assert done.returncode == 0, done.stderr
    done = keelog_text("", ["-c", "here", *read])
    assert (done.returncode, len(done.stdout) > 0) == (0, True), done.stderr
    assert ALICE.secret not in (tmp_path / "keelog" / "contexts.toml").read_text()


@pytest.mark.parametrize(
    "words",
    [
        ("consume", "t", "--access-key", "alice", "--secret-file", "x"),
        ("consume", "t", "--group", "g", "--access-key", "alice"),
        ("context", "add", "here", "--node", "127.0.0.1:1", "--secret-file", "x"),
    ],
)
def test_half_a_login_is_a_mistake_of_who_types(master: RunningNode, words: list[str]) -> None:
    assert keelog_text(master.endpoint, words).returncode == 2


def test_a_file_that_others_may_read_is_no_start_and_ends_with_2(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    for setting in (inner_setting(tmp_path), f"init_authentication_user_file={tmp_path}/none"):
        file = Path(setting.partition("=")[2])
        if file.exists():
            file.chmod(0o644)
        assert run(["serve", str(tmp_path / "store"), "-X", setting]) == 2
        shown = capfd.readouterr().err
        assert str(file) in shown
        assert "canary-of" not in shown
        assert not (tmp_path / "store").exists()
