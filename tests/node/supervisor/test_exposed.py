"""A node that other hosts reach: what each end needs to start, and what is said of it if not."""

import logging
import shlex
import socket
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from keelog.cli.main import run
from node.access.curve import make_server_keys, new_pair
from node.access.token_file import read_token
from node.access.users_file import read_users, write_users
from node.runtime import addresses
from node.runtime.settings import AUTO, OFF, ON, Settings, load_settings
from node.store.identity.places import create_store
from node.supervisor.bind import End
from node.supervisor.exposed import (
    WARN_EVERY_S,
    EndNeedsLogin,
    Exposure,
    KnownUsers,
    OpenEndsWarning,
    checked_exposure,
    known_at,
    served_ends,
)
from node.supervisor.options import Options, ServeSettings
from protocol.access.users import AccessTable, User, UserStatus
from protocol.errors import BadRequest
from tests.support.certificates import Authority

FIELDS = {
    End.ZEROMQ: ("bind", "tcp://{}:7850"),
    End.REMOTING: ("remoting", "{}:10911"),
    End.HA: ("ha_listen", "{}:10912"),
    End.HTTP: ("http", "{}:7855"),
}
OPTIONS = dict(zip(End, ("--bind", "--remoting", "--ha", "--http"), strict=True))
BEYOND = ("0.0.0.0", "[::]", "*", "192.0.2.7", "[2001:db8::7]", "[::ffff:127.0.0.1]", "db7")
NEAR = ("127.0.0.1", "127.0.0.2", "[::1]", "localhost", "near")
OTHER_HOSTS = "other hosts reach "
PASSWORD = User("operator", "canary-secret")
TOKEN = "0123456789abcdef"


@pytest.fixture(autouse=True)
def _names(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two names that resolve: `near` to loopback, `db7` to an address of the network."""
    real = addresses.address_of

    def address_of(host: str, port: int = 0) -> object:
        known = {"near": "127.0.1.1", "db7": "192.0.2.7"}
        return (socket.AF_INET, (known[host], port)) if host in known else real(host, port)

    monkeypatch.setattr(addresses, "address_of", address_of)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("authority"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Of a store that is not there yet."""
    return tmp_path / "a store"


def options_of(root: Path, end: End, host: str, open_ends: str = "") -> Options:
    name, text = FIELDS[end]
    chosen = {name: text.format(host)}
    return Options(root, serve=replace(ServeSettings(open_ends=open_ends), **chosen))  # type: ignore[arg-type]


def check(
    root: Path, end: End, host: str, *pairs: str, open_ends: str = ""
) -> tuple[Exposure, Settings]:
    settings = load_settings(pairs)
    return checked_exposure(options_of(root, end, host, open_ends), settings), settings


def users(root: Path, *found: User) -> None:
    root.mkdir(exist_ok=True)
    write_users(root, AccessTable({one.name: one for one in found}, {}, 1))


def user_with_key() -> User:
    return User("operator", "", public_keys=(new_pair().public,))


def token_file(folder: Path) -> str:
    path = folder / "token"
    path.write_text(f"{TOKEN}\n")
    path.chmod(0o600)
    return f"http_token_file={path}"


# -- each end -------------------------------------------------------------------------------------


@pytest.mark.parametrize("end", End)
@pytest.mark.parametrize("host", NEAR)
def test_an_end_at_loopback_needs_nothing(root: Path, end: End, host: str) -> None:
    exposure, _ = check(root, end, host)
    assert not exposure.is_beyond
    assert exposure.login(end) == AUTO
    assert not root.exists()


@pytest.mark.parametrize("end", End)
@pytest.mark.parametrize("host", BEYOND)
def test_an_end_that_other_hosts_reach_needs_something(root: Path, end: End, host: str) -> None:
    with pytest.raises(EndNeedsLogin) as refused:
        check(root, end, host)
    given = FIELDS[end][1].format(host)
    assert refused.value.reason.startswith(f"{OTHER_HOSTS}{OPTIONS[end]} {given}, and ")
    assert refused.value.hint.endswith(f"with --open {end}")
    assert not root.exists(), "nothing was written"


@pytest.mark.parametrize("end", End)
@pytest.mark.parametrize("host", BEYOND)
def test_an_end_may_be_left_open_by_its_word(root: Path, end: End, host: str) -> None:
    exposure, _ = check(root, end, host, open_ends=f" {end} ,")
    assert [one.end for one in exposure.opened] == [end]
    assert exposure.login(end) == OFF


def test_remoting_needs_a_user_with_a_password_who_is_enabled(root: Path) -> None:
    disabled = User("operator", "canary-secret", status=UserStatus.DISABLE)
    for lacking in (disabled, user_with_key()):
        users(root, lacking)
        with pytest.raises(EndNeedsLogin, match="no user has a password"):
            check(root, End.REMOTING, "0.0.0.0")
    users(root, PASSWORD)
    exposure, _ = check(root, End.REMOTING, "0.0.0.0")
    assert exposure.login(End.REMOTING) == ON, "also when the last user is removed"


def test_zeromq_needs_keys_of_the_node_and_a_user_with_a_key(root: Path) -> None:
    users(root, PASSWORD)
    with pytest.raises(EndNeedsLogin, match="the node has no keys and no user has a public key"):
        check(root, End.ZEROMQ, "0.0.0.0")
    make_server_keys(root)
    with pytest.raises(EndNeedsLogin, match=r"7850, and no user has a public key$"):
        check(root, End.ZEROMQ, "0.0.0.0")
    users(root, user_with_key())
    exposure, _ = check(root, End.ZEROMQ, "0.0.0.0")
    assert exposure.login(End.REMOTING) == ON, "users are what other hosts come with"


@pytest.mark.parametrize("everybody", ["", "0.0.0.0/0", "10.0.0.0/8,::/0"])
def test_followers_need_an_address_that_is_named(root: Path, everybody: str) -> None:
    with pytest.raises(EndNeedsLogin, match="ha_allowed_peers names nobody in particular"):
        check(root, End.HA, "0.0.0.0", f"ha_allowed_peers={everybody}")
    check(root, End.HA, "0.0.0.0", "ha_allowed_peers=192.0.2.7,10.0.0.0/8")


def test_followers_may_show_certificates_instead_where_all_must(
    root: Path, authority: Authority
) -> None:
    server = authority.pair("ha").server
    trust = f"tls_server_trust_cert_path={authority.trust}"
    check(root, End.HA, "0.0.0.0", *server, trust)
    for not_all in ((*server,), (*server, trust, "tls_server_mode=permissive")):
        with pytest.raises(EndNeedsLogin):
            check(root, End.HA, "0.0.0.0", *not_all)


def test_http_needs_a_token_or_a_user_and_a_certificate(
    root: Path, tmp_path: Path, authority: Authority
) -> None:
    exposure, _ = check(root, End.HTTP, "0.0.0.0", token_file(tmp_path))
    assert exposure.login(End.HTTP) == ON
    assert exposure.login(End.REMOTING) == AUTO, "a token is nobody's password"
    server = authority.pair("http").server
    with pytest.raises(EndNeedsLogin):
        check(root, End.HTTP, "0.0.0.0", *server)
    users(root, PASSWORD)
    with pytest.raises(EndNeedsLogin):
        check(root, End.HTTP, "0.0.0.0")
    check(root, End.HTTP, "0.0.0.0", *server)


def test_logins_that_are_off_do_not_do_beyond_loopback(
    root: Path, tmp_path: Path, authority: Authority
) -> None:
    users(root, PASSWORD)
    off = "authentication_enabled=false"
    with pytest.raises(EndNeedsLogin, match="authentication_enabled is false") as refused:
        check(root, End.REMOTING, "0.0.0.0", off)
    assert "-X authentication_enabled=auto" in refused.value.hint
    with pytest.raises(EndNeedsLogin):
        check(root, End.HTTP, "0.0.0.0", off, *authority.pair("off").server)
    check(root, End.HTTP, "0.0.0.0", off, token_file(tmp_path))
    check(root, End.REMOTING, "0.0.0.0", off, open_ends="remoting")
    check(root, End.REMOTING, "127.0.0.1", off)


@pytest.mark.parametrize(
    "role",
    [
        [],
        ["--follow", "192.0.2.7:10912"],
        ["--controller", "c:9878", "--namesrv", "n:9876", "--ha", "127.0.0.1:10912"],
    ],
    ids=["a node", "a replica", "a keeper"],
)
def test_the_rule_is_the_same_for_every_role(
    root: Path, role: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", str(root), "--remoting", "0.0.0.0:10911", *role]) == 2
    assert f"{OTHER_HOSTS}--remoting 0.0.0.0:10911" in capsys.readouterr().err
    assert not root.exists()


# -- what helps -----------------------------------------------------------------------------------


def test_all_ends_are_named_at_once_and_the_commands_help(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The commands of the message are run as they are printed, but for the one that is not ours."""
    monkeypatch.chdir(tmp_path)
    ends = ["--bind", "tcp://0.0.0.0:7850", "--remoting", "[::]:10911", "--http", "*:7855"]
    words = ["serve", str(root), *ends, "--ha", "0.0.0.0:10912"]
    assert run(words) == 2
    error, cause, hint = capsys.readouterr().err.splitlines()
    assert error == f"error: cannot serve {root}"
    assert cause.count(OTHER_HOSTS) == 4
    assert list(tmp_path.iterdir()) == [], "nothing was written"
    commands, _, rest = hint.removeprefix("try: ").partition(", then the same command again with ")
    for command in commands.split(" && "):
        if command.startswith("keelog "):
            assert run(shlex.split(command)[1:]) == 0, capsys.readouterr().err
            assert str(root) in shlex.split(command) or "key new" in command
    assert command.startswith("(umask 077; openssl rand -hex 32 > ")
    settings = [one for one in shlex.split(rest.partition("  (")[0]) if one != "-X"]
    assert settings == [f"http_token_file={root}.http_token", "ha_allowed_peers=ADDRESSES"]
    assert hint.endswith("; or, where everybody may come, with --open zeromq,remoting,ha,http")
    settings = [token_file(tmp_path), "ha_allowed_peers=192.0.2.7"]
    serve = ServeSettings("tcp://0.0.0.0:7850", http="*:7855", remoting="[::]:10911")
    checked_exposure(Options(root, serve=serve), load_settings(settings))
    (made,) = read_users(root)[0].users.values()
    assert (made.is_super, bool(made.secret), len(made.public_keys)) == (True, True, 1)


def test_a_user_who_is_there_is_not_made_again(root: Path) -> None:
    create_store(root)
    users(root, User("o'neil", "", status=UserStatus.DISABLE))
    with pytest.raises(EndNeedsLogin) as refused:
        check(root, End.REMOTING, "0.0.0.0")
    command = refused.value.hint.partition(", then")[0]
    where = ["--store", str(root)]
    words = ["keelog", "user", "set", "o'neil", "--enable", "--new-password", *where]
    assert shlex.split(command) == words
    assert run(words[1:]) == 0
    check(root, End.REMOTING, "0.0.0.0")


def test_what_is_open_already_stays_in_the_advice(root: Path) -> None:
    serve = ServeSettings("tcp://0.0.0.0:7850", remoting="0.0.0.0:10911", open_ends="remoting")
    with pytest.raises(EndNeedsLogin) as refused:
        checked_exposure(Options(root, serve=serve), Settings())
    assert refused.value.hint.endswith("with --open remoting,zeromq")
    assert "--remoting" not in refused.value.reason


# -- --open ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--open", "console"], "open names 'console', no end of a node"),
        (["--open", "ha"], "--open ha opens nothing: the node has no --ha"),
        (["--open", "zeromq"], "tcp://127.0.0.1:7850 is for this machine alone"),
        (["--http", "localhost:7855", "--open", "http"], "is for this machine alone"),
        (
            ["--remoting", "*:9", "--open", "remoting", "-X", "authentication_enabled=true"],
            "authentication_enabled is true",
        ),
        (["--ha", "*:9", "--open", "ha", "-X", "ha_allowed_peers=10.0.0.1"], "say who may follow"),
    ],
)
def test_a_word_that_opens_nothing_is_refused(
    root: Path, words: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["serve", str(root), *words]) == 2
    assert why in capsys.readouterr().err
    assert not root.exists()


def test_keys_and_tokens_are_not_opened_away(root: Path, tmp_path: Path) -> None:
    make_server_keys(root)
    with pytest.raises(BadRequest, match="--open zeromq opens nothing: the node has keys"):
        check(root, End.ZEROMQ, "*", open_ends="zeromq")
    with pytest.raises(BadRequest, match="--open http opens nothing: http_token_file is set"):
        check(root, End.HTTP, "*", token_file(tmp_path), open_ends="http")


def test_an_open_end_asks_for_no_login_though_there_are_users(root: Path) -> None:
    """They may be there for another end."""
    users(root, PASSWORD)
    exposure, _ = check(root, End.REMOTING, "*", open_ends="remoting")
    assert (exposure.login(End.REMOTING), exposure.login(End.HTTP)) == (OFF, AUTO)


def test_open_ends_are_in_the_log_at_the_start_and_each_hour(
    caplog: pytest.LogCaptureFixture,
) -> None:
    serve = ServeSettings("tcp://[::]:7850", http="0.0.0.0:7855", open_ends="zeromq,http")
    warning = OpenEndsWarning(Exposure(served_ends(serve), tuple(End), Settings()).opened)
    counts = []
    with caplog.at_level(logging.WARNING, "keelog.supervisor"):
        for now in (5.0, 6.0, 5.0 + WARN_EVERY_S - 0.1, 5.0 + WARN_EVERY_S):
            warning.turn(now)
            counts.append(len(caplog.records))
    assert counts == [2, 2, 2, 4]
    said = [one.__dict__["fields"] for one in caplog.records[:2]]
    assert said == [
        {"end": "zeromq", "address": "[::]:7850"}, {"end": "http", "address": "0.0.0.0:7855"}
    ]  # fmt: skip
    assert (
        warning.text == "open to everybody, by --open: --bind tcp://[::]:7850, --http 0.0.0.0:7855"
    )


def test_nothing_is_said_of_a_node_without_open_ends(caplog: pytest.LogCaptureFixture) -> None:
    warning = OpenEndsWarning(())
    warning.turn(0.0)
    assert (warning.text, caplog.records) == ("", [])


# -- files ----------------------------------------------------------------------------------------


@pytest.fixture
def token(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "token"
    path.write_text(f"  {TOKEN}\n")
    path.chmod(0o600)
    yield path


def test_a_token_is_its_owners_alone_and_no_short_one(token: Path, root: Path) -> None:
    assert read_token(str(token)) == TOKEN
    for mode in (0o604, 0o640, 0o602):
        token.chmod(mode)
        if token.stat().st_uid == 0 and stat.S_IMODE(mode) == 0o640:
            continue  # a file of root may be read by its group
        with pytest.raises(Exception, match=f"its mode is {mode:04o}"):
            check(root, End.HTTP, "127.0.0.1", f"http_token_file={token}")
    token.chmod(0o600)
    for text in ("", "short", "ü" * 20, "a b\x00" * 9):
        token.write_text(text)
        with pytest.raises(BadRequest, match="holds no token"):
            check(root, End.HTTP, "127.0.0.1", f"http_token_file={token}")
    with pytest.raises(BadRequest, match="http_token_file is 'token'"):
        load_settings(["http_token_file=token"])


def test_a_store_that_cannot_be_one_has_no_users(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert known_at(tmp_path / "file") == KnownUsers()
