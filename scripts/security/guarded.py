"""A node with a user, keys and a certificate, made as an operator would, and how it is served.

`guest` may send to and read one topic, as one group, and look at the node. A certificate is of an
authority that is made for the run; the guest has one of it too, by which a follower may follow.
"""

import ssl
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import redirect_stdout
from io import BytesIO, TextIOWrapper
from pathlib import Path
from typing import NamedTuple, Self

import trustme

from keelog.bench.node_process import ANY_DISK, START_S, STOP_S
from keelog.cli.main import run
from keelog.cli.node.serve import serve
from node.access.curve import make_server_keys, write_pair
from node.store.identity.places import create_store
from node.supervisor.bind import free_ports
from node.supervisor.child_process import environment
from protocol.access.key_files import SECRET_SUFFIX
from protocol.addresses import VIP_DISTANCE
from scripts.security.peers import CurveKeys, PeerLogin, Place

GUEST, PASSWORD = "guest", "a password of the guest"
OWN_TOPIC, FOREIGN_TOPIC, GROUP = "mine", "theirs", "mine-readers"
RIGHTS = (
    (f"Topic:{OWN_TOPIC}", "pub,sub"),
    (f"Group:{GROUP}", "sub"),
    ("Cluster:DefaultCluster", "get"),
)
SMALL = "mapped_file_size_commit_log=4194304"
OPEN = "--open"
OPEN_ENDS = "remoting,zeromq,ha,http"


class NodePorts(NamedTuple):
    """Where a node listens, at all addresses of its machine or at one of them."""

    control: int
    remoting: int
    ha: int
    http: int

    @classmethod
    def free(cls) -> "NodePorts":
        """Free ones now."""
        taken = free_ports(3), free_ports(4) + 3
        ha = free_ports(1, avoid=range(taken[0], taken[0] + 3))
        return cls(*taken, ha, free_ports(1, avoid=(ha,)))

    def words(self, host: str) -> list[str]:
        """The options of `keelog serve`."""
        return [
            *("--bind", f"tcp://{host}:{self.control}", "--readers", "1"),
            *("--remoting", f"{host}:{self.remoting}"),
            *("--ha", f"{host}:{self.ha}", "--http", f"{host}:{self.http}"),
        ]

    def places(self, host: str) -> dict[str, Place]:
        """Each end by its name, as clients at another machine reach it."""
        return {
            "control": (host, self.control),
            "writer": (host, self.control + 1),
            "reader": (host, self.control + 2),
            "remoting": (host, self.remoting),
            f"remoting - {VIP_DISTANCE}": (host, self.remoting - VIP_DISTANCE),
            "followers": (host, self.ha),
            "http": (host, self.http),
        }


class ServedNode:
    """`keelog serve`, as a context: ready inside, stopped behind it. What it says goes to a file
    beside the store."""

    def __init__(self, root: Path, words: Sequence[str]) -> None:
        self.root = root
        self._words = list(words)
        self._talk = root.with_name(f"{root.name}.log")
        self._process: subprocess.Popen[bytes] | None = None

    def begin(self) -> None:
        """Starts it and does not wait."""
        settings = [word for pair in (*ANY_DISK, SMALL) for word in ("-X", pair)]
        command = [sys.executable, "-m", "keelog", "serve", str(self.root)]
        with self._talk.open("wb") as talk:
            self._process = subprocess.Popen(
                [*command, *settings, *self._words],
                stdin=subprocess.DEVNULL, stdout=talk, stderr=talk, env=environment(),
                process_group=0,
            )  # fmt: skip

    @property
    def pid(self) -> int:
        """The supervisor's."""
        assert self._process is not None, "not started"
        return self._process.pid

    def said(self) -> str:
        """All that it has said."""
        return self._talk.read_text(errors="replace")

    def wait_ready(self) -> bool:
        """Returns when it is ready, or has ended: whether it is ready."""
        assert self._process is not None, "not started"
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline and self._process.poll() is None:
            if any(line.startswith("ready ") for line in self.said().splitlines()):
                return True
            time.sleep(0.02)
        return False

    def stop(self) -> int:
        """SIGTERM to one that runs; the exit code."""
        assert self._process is not None, "not started"
        self._process.terminate()
        try:
            return self._process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise

    def __enter__(self) -> Self:
        self.begin()
        if not self.wait_ready():
            code = self.stop()
            raise SystemExit(f"error: the node ended with {code}:\n{self.said()}")
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


class GuestCredentials(NamedTuple):
    """Files and texts of the guest, of the node, and of somebody unknown."""

    keys: CurveKeys
    key_file: Path
    """Of the guest's secret key."""
    unknown_keys: CurveKeys
    trust: Path
    certificate: Path
    """With its key."""
    foreign_certificate: Path
    """Of another authority."""
    node_words: tuple[str, ...]
    """Options of `keelog serve`: the node's certificate, and whom it trusts."""

    def login(self) -> PeerLogin:
        """The guest, at every end."""
        return PeerLogin(GUEST, PASSWORD, self.keys, self.context(self.certificate))

    def context(self, certificate: Path | None = None) -> ssl.SSLContext:
        """Trusts the node's authority, and may show a certificate."""
        made = ssl.create_default_context(cafile=str(self.trust))
        if certificate is not None:
            made.load_cert_chain(certificate)
        return made


def make_guarded_store(root: Path, host: str) -> GuestCredentials:
    """Makes a store with the guest, and beside it the files of everybody. Its node serves by
    `node_words`; clients connect to it at `host`, which its certificate names."""
    folder = root.parent
    create_store(root)
    server = make_server_keys(root).public
    pairs = [write_pair(folder, name) for name in (GUEST, "unknown")]
    keys, unknown = (CurveKeys(pair.public, pair.secret, server) for pair in pairs)
    make_guest("--store", str(root), folder, public_key=keys.public)
    # A node at loopback whose last user goes is one without logins.
    keelog("user", "create", "operator", "--super", "--store", str(root))
    authority, other = trustme.CA(), trustme.CA()
    trust = folder / "trust.pem"
    authority.cert_pem.write_to_path(str(trust))
    paths = []
    for name, by in (("node", authority), (GUEST, authority), ("foreign", other)):
        path = folder / f"{name}.pem"
        path.touch(0o600)
        by.issue_cert(name, host).private_key_and_cert_chain_pem.write_to_path(
            str(path), append=True
        )
        paths.append(path)
    settings = (
        f"tls_server_cert_path={paths[0]}", f"tls_server_key_path={paths[0]}",
        f"tls_server_trust_cert_path={trust}",
    )  # fmt: skip
    words = tuple(word for pair in settings for word in ("-X", pair))
    return GuestCredentials(
        keys, folder / f"{GUEST}{SECRET_SUFFIX}", unknown, trust, paths[1], paths[2], words
    )


def make_guest(option: str, where: str, folder: Path, public_key: str = "") -> None:
    """Makes the user and its list; `option` and `where`: `--store DIR` or `--node URL`."""
    password = folder / "password"
    password.touch(0o600)
    password.write_text(f"{PASSWORD}\n")
    given = ["--password-file", str(password)]
    given += ["--public-key", public_key] if public_key else []
    keelog("user", "create", GUEST, *given, option, where)
    for resource, actions in RIGHTS:
        keelog("acl", "allow", GUEST, resource, actions, option, where)


def keelog(*words: str) -> None:
    """One command of the command line, in this process. Raises SystemExit where it fails."""
    with redirect_stdout(TextIOWrapper(BytesIO())):
        code = run(words)
    if code:
        raise SystemExit(f"error: keelog {' '.join(words)} ended with {code}")


def open_words() -> list[str]:
    """The option by which a node without logins serves beyond loopback."""
    has_it = any(OPEN in option.opts for option in serve.params)
    return [OPEN, OPEN_ENDS] if has_it else []
