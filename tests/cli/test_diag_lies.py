"""`keelog diag` asks a node that lies: nothing that it names is opened, and its zip says why."""

import contextlib
import http.server
import json
import os
import socket
import socketserver
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from keelog import diag as diagnosis
from keelog.cli.main import run
from keelog.diag import LOG_BYTES_MAX, LOG_LINE_CHARS_MAX, METRICS_BYTES_MAX, last_lines
from tests.support.lying_node import LyingNode, lying_node, truthful_status
from tests.support.node import RunningNode

SECRET = b"TOPSECRETLINE"
ALWAYS = {
    *("versions.json", "environment.json", "status.json", "health.json", "settings.json"),
    *("origins.json", "processes.json", "machine.json", "problems.json"),
}


class Zip(NamedTuple):
    """What is in the file."""

    files: dict[str, bytes]

    @property
    def problems(self) -> str:
        return "\n".join(json.loads(self.files["problems.json"]))


Diag = Callable[..., Zip]


@pytest.fixture
def diag(tmp_path: Path) -> Diag:
    def made(url: str, *words: str) -> Zip:
        out = tmp_path / "diag.zip"
        out.unlink(missing_ok=True)
        assert run(["diag", "-o", str(out), "--node", url, *words]) == 0
        with zipfile.ZipFile(out) as zip_:
            return Zip({name: zip_.read(name) for name in zip_.namelist()})

    return made


@pytest.fixture
def liar() -> Iterator[LyingNode]:
    with lying_node() as node:
        yield node


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A private key, and a way to it."""
    folder = tmp_path / "home"
    folder.mkdir(mode=0o700)
    path = folder / "id_rsa"
    path.write_bytes(b"-----BEGIN PRIVATE KEY-----\n" + SECRET + b"\n-----END\n")
    path.chmod(0o600)
    (tmp_path / "link").symlink_to(path)
    return path


def lie(pid: int, **fields: Any) -> dict[str, Any]:
    status = truthful_status()
    return {**status, **fields, "supervisor": {**status["supervisor"], "pid": pid}}


@pytest.mark.parametrize("through", ["the path", "a link"])
def test_no_file_that_a_node_names_is_read(
    liar: LyingNode, diag: Diag, secret: Path, tmp_path: Path, through: str
) -> None:
    path = secret if through == "the path" else tmp_path / "link"
    liar.status = lie(os.getpid(), log_file=str(path), store="/etc")
    found = diag(liar.url)
    assert found.files.keys() == ALWAYS
    assert not any(SECRET in data or b"hosts" in data for data in found.files.values())
    assert f"store/, log.txt, processes.json: process {os.getpid()} holds no store" in (
        found.problems
    )


@pytest.mark.parametrize(
    ("pid", "why"),
    [
        ("the parent", "does not listen at 127.0.0.1"),
        (0, "is not seen here"),
        (-5, "is not seen here"),
        (2**40, "is not seen here"),
        ("1", "names no process"),
        (None, "names no process"),
    ],
)
def test_a_process_that_is_not_the_node_is_not_looked_at(
    liar: LyingNode, diag: Diag, pid: Any, why: str
) -> None:
    liar.status = lie(os.getppid() if pid == "the parent" else pid)
    found = diag(liar.url)
    assert found.files.keys() == ALWAYS
    assert why in found.problems
    assert json.loads(found.files["processes.json"]) == []


def test_a_node_that_names_another_one_gets_nothing_of_that(
    node: RunningNode, liar: LyingNode, diag: Diag
) -> None:
    liar.status = lie(node.pid, store=str(node.root))
    found = diag(liar.url)
    assert found.files.keys() == ALWAYS
    assert f"process {node.pid} does not listen at 127.0.0.1" in found.problems


def test_a_host_name_is_not_taken_for_this_machine() -> None:
    for url in ("tcp://host.example:1", "tcp://192.0.2.1:1"):
        with pytest.raises(diagnosis.Unproven, match="or an IP address of this machine"):
            diagnosis.node_here(url, truthful_status())


@pytest.mark.process
def test_a_node_of_another_user_is_not_believed(liar: LyingNode, diag: Diag) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may start a process of another user")
    code = "import os, time; os.setuid(65534); print('here', flush=True); time.sleep(60)"
    command = [sys.executable, "-c", code]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        other.stdout.readline()
        liar.status = lie(other.pid)
        found = diag(liar.url)
        other.kill()
    assert f"process {other.pid} is of user nobody: ask as that user" in found.problems


@pytest.mark.process
def test_of_a_node_of_ones_own_all_is_there_without_being_named(tmp_path: Path, diag: Diag) -> None:
    log = tmp_path / "node.log"
    command = [sys.executable, "-m", "keelog", "serve", str(tmp_path / "store")]
    command += ["--bind", "tcp://127.0.0.1:0", "--while-pid", str(os.getpid())]
    with log.open("ab") as stderr, subprocess.Popen(command, stderr=stderr) as node:
        try:
            deadline = time.monotonic() + 60
            while "ready tcp://" not in log.read_text():
                assert time.monotonic() < deadline, log.read_text()
                time.sleep(0.02)
            url = log.read_text().partition("ready ")[2].split()[0]
            found = diag(url)
            assert found.problems == "metrics.txt: the node was started without --http"
            assert f"ready {url}".encode() in found.files["log.txt"]
            assert b"commitlog/" in found.files["store/files.json"]
            names = {row["name"] for row in json.loads(found.files["processes.json"])}
            assert {"keelog-serve", "keelog-writer", "keelog-index"} <= names
            assert diag(url.replace("127.0.0.1", "localhost")).files.keys() == found.files.keys()
        finally:
            node.terminate()


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("file:///etc/passwd#", "names no http://HOST:PORT"),
        ("ftp://127.0.0.1:1/x", "names no http://HOST:PORT"),
        ("http://example.com:80/", "and names another host"),
        ("http://127.0.0.1.example.com:80/", "and names another host"),
        ("http://169.254.169.254:80/latest", "and names another host"),
        ("http://[::1", "names no http://HOST:PORT"),
        ("http://127.0.0.1:99999", "names no http://HOST:PORT"),
        ("http://127.0.0.1", "names no http://HOST:PORT"),
        (["http://127.0.0.1:1"], "names no http://HOST:PORT"),
    ],
)
def test_only_the_host_that_was_asked_is_asked_for_metrics(
    liar: LyingNode, diag: Diag, named: Any, why: str
) -> None:
    liar.status = lie(1, http=named)
    found = diag(liar.url)
    assert found.files.keys() == ALWAYS
    assert "metrics.txt: Unproven: " in found.problems
    assert why in found.problems


def test_a_remote_nodes_loopback_is_not_ours() -> None:
    with pytest.raises(diagnosis.Unproven, match=r"asked at 192\.0\.2\.1, and names another host"):
        diagnosis.metrics_text("tcp://192.0.2.1:7850", "http://127.0.0.1:22")


class Strange(http.server.BaseHTTPRequestHandler):
    """Answers that a metrics page does not give; which one the port's owner says."""

    kind = ""
    asked: list[str]

    def do_GET(self) -> None:
        self.asked.append(self.path)
        with contextlib.suppress(OSError):
            getattr(self, f"_{self.kind}")()

    def _redirect(self) -> None:
        self.send_response(302)
        self.send_header("Location", "file:///etc/passwd")
        self.end_headers()

    def _endless(self) -> None:
        self.send_response(200)
        self.end_headers()
        while True:
            self.wfile.write(b"keelog_x 1\n" * 10_000)

    def _slow(self) -> None:
        self.send_response(200)
        self.end_headers()
        while True:
            self.wfile.write(b"k")
            time.sleep(0.05)

    def _slow_head(self) -> None:
        while True:
            self.wfile.write(b"H")
            time.sleep(0.05)

    def _foreign(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(SECRET)

    def _good(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b"keelog_up 1\n\x1b[31m\xc2\x9b2J\n")

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


class Quiet(socketserver.ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True
    address_family = socket.AF_INET


@contextlib.contextmanager
def strange(kind: str) -> Iterator[tuple[str, list[str]]]:
    asked: list[str] = []
    handler = type("Handler", (Strange,), {"kind": kind, "asked": asked})
    with Quiet(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("redirect", "the answer is 302"),
        ("endless", f"the answer has more than {METRICS_BYTES_MAX} bytes"),
        ("slow", "the answer took more than"),
        ("slow_head", "the answer"),
        ("foreign", "the answer holds no metric of Keelog"),
    ],
)
def test_of_an_answer_that_is_no_metrics_page_nothing_is_kept(
    liar: LyingNode, diag: Diag, monkeypatch: pytest.MonkeyPatch, kind: str, why: str
) -> None:
    monkeypatch.setattr(diagnosis, "HTTP_S_MAX", 1.0 if "slow" in kind else 60.0)
    began = time.monotonic()
    with strange(kind) as (url, asked):
        liar.status = lie(1, http=f"{url}/secret?x=1#y")
        found = diag(liar.url)
    assert found.files.keys() == ALWAYS
    # The end that is late may reset the connection before the answer counts as late.
    is_reset = kind == "slow_head" and "metrics.txt: ConnectionResetError" in found.problems
    assert is_reset or f"metrics.txt: Unproven: {why}" in found.problems
    assert asked in (["/metrics"], [])
    assert time.monotonic() - began < 60


def test_no_proxy_is_asked(liar: LyingNode, diag: Diag, monkeypatch: pytest.MonkeyPatch) -> None:
    with strange("foreign") as (proxy, asked), strange("good") as (url, _):
        for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy)
        liar.status = lie(1, http=url)
        assert diag(liar.url).files["metrics.txt"] == b"keelog_up 1\n\\u001b[31m\\u009b2J\n"
        assert asked == []


def test_what_a_node_says_names_no_entry_of_the_zip(liar: LyingNode, diag: Diag) -> None:
    word = "../../x"
    liar.status = {**truthful_status(word), word: word}
    liar.checks = [{"name": word, "ok": True, "detail": word, "needed": True}]
    assert diag(liar.url).files.keys() == ALWAYS


def test_of_a_huge_log_only_the_end_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("wb") as file:
        file.truncate(64 * LOG_BYTES_MAX)
        file.seek(0, os.SEEK_END)
        file.write(b"\nlast\n")
    first, last = last_lines(log).splitlines()
    assert (len(first), last) == (LOG_LINE_CHARS_MAX, b"last")
