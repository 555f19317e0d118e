"""A node that holds every kind of secret: none of them is seen anywhere but in its own file.

Each secret is a text that is found nowhere else. All that the node and its commands say, write or
show is searched for it, and the memory of processes that need none.
"""

import os
import re
import subprocess
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import NamedTuple

import pytest

import keelog
from keelog.cli.main import run
from node.access.curve import make_server_keys, read_pair, write_pair
from node.access.users_file import write_users
from node.runtime.run_files import read_control
from node.store.identity.places import create_store
from protocol.access.users import AccessTable, User
from protocol.remoting.codes import RequestCode as Code
from tests.node.access.test_tls import encrypted
from tests.support.certificates import Authority
from tests.support.node import RunningNode
from tests.support.remoting import REMOTING, SignedPeer, remoting_place, send_fields

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("canary")]

HTTP_PLACE = re.compile(r"metrics (https://127\.0\.0\.1:[0-9]+)/metrics")
HOLDS_NONE = ("queue", "index", "tasks")
"""Roles of processes that know no user, and open no port."""
CANARY = "canary-of-"
MAPPED = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw.. \S+ \S+ \S+ *(.*)")


class Secrets(NamedTuple):
    """What is searched for, and the files that may hold it."""

    texts: dict[str, str]
    client_key: Path

    def found_in(self, data: bytes) -> list[str]:
        return [what for what, text in self.texts.items() if text.encode() in data]


class Site(NamedTuple):
    node: RunningNode
    secrets: Secrets
    authority: Authority

    def check(self, data: bytes | str, where: str) -> None:
        """No secret is in it."""
        raw = data.encode() if isinstance(data, str) else data
        assert raw, f"{where}: nothing was searched"
        assert self.secrets.found_in(raw) == [], where

    def peer(self, user: str) -> SignedPeer:
        """By TLS."""
        peer = SignedPeer(remoting_place(self.node.stderr), user, self.secrets.texts[user])
        peer.socket = self.authority.client().wrap_socket(peer.socket, server_hostname="localhost")
        return peer


def secret_file(path: Path, text: str) -> Path:
    path.touch(0o600)
    path.write_text(text)
    return path


def made(folder: Path, root: Path, authority: Authority) -> tuple[Secrets, list[str]]:
    """All secrets, and the settings that name their files."""
    kinds = ("first", "inner", "alice", "new", "token", "key password", "client password")
    texts = {kind: f"{CANARY}{kind.replace(' ', '-')}-{os.urandom(4).hex()}" for kind in kinds}
    create_store(root)
    texts["server key"] = make_server_keys(root).secret
    public = write_pair(folder, "alice").public
    client_key = folder / "alice.key_secret"
    texts["client key"] = read_pair(client_key).secret
    write_users(root, AccessTable({"alice": User("alice", texts["alice"], public_keys=(public,))}))
    pair, own = authority.pair("server"), authority.pair("own")
    encrypted(pair, texts["key password"].encode())
    encrypted(own, texts["client password"].encode())
    texts["TLS key"] = pair.key.read_text().split("\n")[1]
    first = f'{{"username":"first","password":"{texts["first"]}"}}'
    inner = f'{{"accessKey":"inner","secretKey":"{texts["inner"]}"}}'
    lines = (
        f"tls.server.keyPassword={texts['key password']}\n"
        f"tls.server.keyPath={pair.key}\ntls.server.certPath={pair.cert}\n"
        f"tls.client.keyPath={own.key}\ntls.client.certPath={own.cert}\n"
        f"tls.client.trustCertPath={authority.trust}\n"
    )
    password = secret_file(folder / "password", texts["client password"])
    settings = [
        *(REMOTING, "serve.ha_listen=127.0.0.1:0", "serve.http=127.0.0.1:0", "tls_enable=true"),
        *("mapped_file_size_commit_log=4194304", f"tls_client_key_password_file={password}"),
        f"tls_config_file={secret_file(folder / 'tls.properties', lines)}",
        f"http_token_file={secret_file(folder / 'token', texts['token'])}",
        f"init_authentication_user_file={secret_file(folder / 'first', first)}",
        f"inner_client_authentication_credentials_file={secret_file(folder / 'inner', inner)}",
    ]
    return Secrets(texts, client_key), settings


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("canary")
    (folder / "tls").mkdir()
    authority, root = Authority(folder / "tls"), folder / "store"
    secrets, settings = made(folder, root, authority)
    with RunningNode(root, settings, queue_workers=1, readers=1) as node:
        found = Site(node, secrets, authority)
        use(found)
        yield found


def use(site: Site) -> None:
    """Everybody logs in, well and badly, and a user is made: then each secret was where it goes."""
    body = f'{{"password":"{site.secrets.texts["new"]}"}}'.encode()
    with closing(site.peer("first")) as first, closing(site.peer("inner")) as inner:
        assert first.ask(Code.AUTH_CREATE_USER, {"username": "new"}, body).code == 0
        assert first.ask(Code.AUTH_CREATE_USER, {"username": "new"}, body).code == 16
        assert inner.ask(Code.GET_ALL_TOPIC_CONFIG, {}).code == 0
        assert first.ask(Code.SEND_MESSAGE_V2, send_fields("orders"), b"x").code == 0
    with closing(site.peer("new")) as new:
        assert new.ask(Code.GET_ALL_TOPIC_CONFIG, {}).code == 16
    server_key = site.node.root / "keelog/auth/server.key"
    key = site.secrets.client_key
    with keelog.connect(site.node.endpoint, 30.0, key=key, server_key=server_key) as client:
        assert client.routes().writer


def local(site: Site) -> keelog.Client:
    return keelog.connect(read_control(site.node.root), 30.0)


def pids(site: Site) -> dict[str, list[int]]:
    with local(site) as client:
        rows = client.status().processes
    found: dict[str, list[int]] = {"supervisor": [site.node.pid]}
    for row in rows:
        if row.pid:
            found.setdefault(row.role, []).append(row.pid)
    return found


@pytest.mark.attack(69)
def test_no_list_of_processes_shows_a_secret(site: Site) -> None:
    every = [pid for of_role in pids(site).values() for pid in of_role]
    assert len(every) >= 8
    for pid in every:
        for name in ("cmdline", "environ", "comm", "status"):
            site.check(Path(f"/proc/{pid}/{name}").read_bytes(), f"{name} of {pid}")
    shown = subprocess.run(["ps", "axeww"], capture_output=True, check=True).stdout
    assert b"keelog" in shown
    site.check(shown, "ps")


@pytest.mark.attack(69)
def test_no_log_and_no_file_but_its_own_holds_a_secret(site: Site) -> None:
    site.check(site.node.stderr, "what the node said")
    own = {"auth/users.json": {"first", "inner", "alice", "new"}}
    own["auth/server.key_secret"] = {"server key"}
    files = [path for path in site.node.root.rglob("*") if path.is_file()]
    assert len(files) > 10
    for path in files:
        name = str(path.relative_to(site.node.root / "keelog")) if "keelog" in path.parts else ""
        assert set(site.secrets.found_in(path.read_bytes())) == own.get(name, set()), path


@pytest.mark.attack(35, 69)
def test_no_settings_status_or_figures_show_a_secret(
    site: Site, capfd: pytest.CaptureFixture[str]
) -> None:
    with local(site) as client:
        site.check(repr(client.status().raw), "status")
        site.check(repr(client.health()), "health")
    with closing(site.peer("first")) as root:
        for code in (Code.GET_BROKER_CONFIG, Code.GET_BROKER_RUNTIME_INFO):
            site.check(root.ask(code, {}).body, code.name)
    where = ["--node", read_control(site.node.root)]
    for words in (
        ["config", "show", *settings_of(site), *where],
        ["config", "show", "--origin", *settings_of(site), *where],
        ["status", *where], ["health", *where], ["user", "ls", *where],
        ["user", "show", "alice", *where],
    ):  # fmt: skip
        assert run(words) == 0, words
        said = capfd.readouterr()
        site.check(said.out + said.err, " ".join(words))


def settings_of(site: Site) -> list[str]:
    """As the node was given them."""
    words = site.node._command
    return [word for at, word in enumerate(words) if "-X" in (word, words[at - 1])]


@pytest.mark.attack(69)
def test_no_page_shows_a_secret(site: Site) -> None:
    found = HTTP_PLACE.search(site.node.stderr)
    assert found is not None
    token = {"Authorization": f"Bearer {site.secrets.texts['token']}"}
    for page in ("/metrics", "/healthz", "/readyz", "/"):
        asked = urllib.request.Request(f"{found[1]}{page}", headers=token)
        try:
            with urllib.request.urlopen(asked, context=site.authority.client()) as answer:
                site.check(answer.read(), page)
        except urllib.error.HTTPError as error:
            site.check(error.read(), page)


@pytest.mark.attack(69)
def test_no_bundle_and_no_backup_holds_a_secret(
    site: Site, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    log, out, where = tmp_path / "log", tmp_path / "diag.zip", read_control(site.node.root)
    log.write_text(site.node.stderr)
    words = ["diag", str(site.node.root), "-o", str(out), "--log", str(log), "--node", where]
    assert run(words) == 0
    with zipfile.ZipFile(out) as zip_:
        assert len(zip_.namelist()) > 5
        for name in zip_.namelist():
            site.check(zip_.read(name) or b"empty", name)
    assert run(["store", "backup", str(site.node.root), str(tmp_path / "copy")]) == 0
    copied = [path for path in (tmp_path / "copy").rglob("*") if path.is_file()]
    assert len(copied) > 3
    for path in copied:
        site.check(path.read_bytes() or b"empty", str(path))
    said = capfd.readouterr()
    site.check(said.out + said.err, "what the commands said")


def memory_of(pid: int) -> Iterator[bytes]:
    """What a core file of the process would have of its own: all that it may write to."""
    maps = Path(f"/proc/{pid}/maps").read_text().split("\n")
    with Path(f"/proc/{pid}/mem").open("rb", buffering=0) as memory:
        for line in maps:
            found = MAPPED.fullmatch(line)
            if found is None or found[3].startswith("/"):
                continue
            begin, end = int(found[1], 16), int(found[2], 16)
            try:
                memory.seek(begin)
                yield memory.read(end - begin)
            except OSError:
                continue  # a guard page, or it is gone


@pytest.mark.attack(69)
@pytest.mark.skipif(os.geteuid() != 0, reason="a system may show memory to root alone")
def test_a_core_file_of_a_process_that_knows_no_user_holds_no_secret(site: Site) -> None:
    found = pids(site)
    assert found.keys() >= set(HOLDS_NONE)
    for role in HOLDS_NONE:
        for pid in found[role]:
            for part in memory_of(pid):
                assert site.secrets.found_in(part) == [], role
    # What is searched for is found where it is: the gateway signs nothing without it.
    in_gateway = {
        one for part in memory_of(found["gateway"][0]) for one in site.secrets.found_in(part)
    }
    assert "alice" in in_gateway
