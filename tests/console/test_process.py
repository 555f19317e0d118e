"""The console as a child of a node: what its end costs, who may start it, who may look."""

import http.client
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from keelog.cli.main import run
from keelog.cli.settings import SERVE, Given, settings_of
from node.access.users_file import write_users
from node.runtime.settings import load_settings
from node.supervisor import before_start
from node.supervisor.bind import free_ports
from node.supervisor.options import Options, ServeSettings
from protocol.access.users import AccessTable, User
from protocol.errors import BadRequest
from tests.support.certificates import Authority
from tests.support.console import CONSOLE, HTML, SAME, ask, console_port
from tests.support.node import RunningNode, wait_until

pytestmark = [pytest.mark.nodes, pytest.mark.xdist_group("console-nodes")]


def console_pid(node: RunningNode) -> int:
    """The pid of the console's process; 0 while there is none."""
    rows = node.client.status().processes
    return next((row.pid or 0 for row in rows if row.role == "console"), 0)


def test_a_console_that_is_killed_loses_no_connection_and_costs_the_node_nothing(
    tmp_path: Path,
) -> None:
    with RunningNode(tmp_path / "store", [CONSOLE], queue_workers=1, readers=1) as node:
        port = console_port(node.stderr)
        wait_until(lambda: ask(port, "/help").status == 200, "no console")
        before = console_pid(node)
        refused: list[BaseException] = []
        unready: list[str] = []
        ends = threading.Event()

        def look() -> None:
            while not ends.is_set():
                if not node.client.health().ready:
                    unready.append("not ready")
                try:
                    ask(port, "/help")
                except ConnectionRefusedError as error:
                    refused.append(error)
                except OSError:
                    pass  # of the connection that the killed process was answering
                time.sleep(0.02)

        looking = threading.Thread(target=look)
        looking.start()
        os.kill(before, signal.SIGKILL)
        wait_until(lambda: console_pid(node) not in (0, before), "it is not started again")
        wait_until(lambda: ask(port, "/help").status == 200, "it does not answer again")
        ends.set()
        looking.join()
        assert refused == []
        assert unready == []
        checks = {one.name: one for one in node.client.health().checks}
        assert not checks["console"].needed
        assert node.client.send("after", b"x").status == "PUT_OK"


def test_requests_of_browsers_are_counted(tmp_path: Path) -> None:
    settings = [CONSOLE, f"serve.http=127.0.0.1:{free_ports(1)}"]
    with RunningNode(tmp_path / "store", settings, queue_workers=1, readers=1) as node:
        port = console_port(node.stderr)
        http = int(str(node.client.status().raw["http"]).rpartition(":")[2])
        for _ in range(20):
            ask(port, "/help")
        wait_until(
            lambda: "keelog_console_requests_total 20.0" in ask(http, "/metrics").text,
            "the requests are not counted",
        )


def test_a_node_is_ready_without_its_console(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", [CONSOLE], queue_workers=1, readers=1) as node:
        port = console_port(node.stderr)
        wait_until(lambda: ask(port, "/help").status == 200, "no console")
        os.kill(console_pid(node), signal.SIGSTOP)
        assert node.client.health().ready
        assert node.client.send("t", b"x").status == "PUT_OK"
        os.kill(console_pid(node), signal.SIGCONT)


def test_a_writer_that_is_killed_shows_and_the_page_stays(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", [CONSOLE], queue_workers=1, readers=1) as node:
        port = console_port(node.stderr)
        node.client.send("orders", b"x")
        wait_until(lambda: "ready" in ask(port, "/").text, "no console")
        node.kill("writer")

        def is_said() -> bool:
            text = ask(port, "/", HTML).text
            return "not ready" in text or "writer" in text.partition('id="strip"')[2][:3_000]

        wait_until(is_said, "the end of the writer does not show", 3.0)
        assert ask(port, "/topics/orders", HTML).status == 200
        wait_until(lambda: "not ready" not in ask(port, "/", HTML).text, "it does not come back")


def test_memory_is_flat_after_many_requests(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", [CONSOLE], queue_workers=1, readers=1) as node:
        port = console_port(node.stderr)
        for number in range(100):
            node.client.send("orders", b'{"n": %d}' % number, keys=f"k-{number}")
        paths = ("/", "/topics", "/topics/orders", "/topics/orders/0/0", "/find?q=k-3", "/assets/x")

        def many(count: int) -> int:
            for number in range(count):
                ask(port, paths[number % len(paths)], HTML)
            return psutil.Process(console_pid(node)).memory_info().rss

        first = many(600)
        last = many(1_200)
        assert last - first < 3 * 1024 * 1024
        assert last < 96 * 1024 * 1024


def test_over_tls_the_console_has_the_certificate_of_the_node(tmp_path: Path) -> None:
    authority = Authority(tmp_path)
    settings = [CONSOLE, *authority.pair("node").server]
    with RunningNode(tmp_path / "store", settings, queue_workers=1, readers=1) as node:
        port = console_port(node.stderr)
        assert f"console https://127.0.0.1:{port}/" in node.stderr

        def get(path: str) -> tuple[int, str]:
            connection = http.client.HTTPSConnection(
                "127.0.0.1", port, timeout=10, context=authority.client()
            )
            try:
                connection.request("GET", path)
                answer = connection.getresponse()
                return answer.status, answer.read().decode()
            finally:
                connection.close()

        wait_until(lambda: get("/help")[0] == 200, "no console")
        with pytest.raises(OSError):
            ask(port, "/help")


def test_open_prints_an_address_whose_key_opens_a_session(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with RunningNode(tmp_path / "store", [CONSOLE], queue_workers=1, readers=1) as node:
        port = console_port(node.stderr)
        wait_until(lambda: ask(port, "/help").status == 200, "no console")
        assert run(["console", "open", "--print", "--node", node.endpoint]) == 0
        address = capsys.readouterr().out.strip()
        url, _, key = address.partition("#")
        assert url == f"http://127.0.0.1:{port}/unlock"
        assert ask(port, "/unlock", SAME, {"key": key}).status == 303


def test_a_console_of_its_own_shows_a_node_anywhere(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "store", queue_workers=1, readers=1) as node:
        node.client.send("orders", b"seen")
        command = [sys.executable, "-m", "keelog", "console", "--listen", "0", "--node"]
        with subprocess.Popen(
            [*command, node.endpoint], stderr=subprocess.PIPE, text=True
        ) as alone:
            try:
                assert alone.stderr is not None
                line = alone.stderr.readline()
                port = int(line.split("/")[2].rpartition(":")[2])
                assert "seen" in ask(port, "/topics/orders", HTML).text
                kill_node = node.stop
                kill_node()
                wait_until(
                    lambda: "no answer" in ask(port, "/", HTML).text, "the end does not show", 10.0
                )
                assert "Processes" in ask(port, "/", HTML).text  # what was known stays
            finally:
                alone.send_signal(signal.SIGTERM)
                assert alone.wait(20) == 0


def test_a_damaged_message_is_a_red_row_and_a_page_with_its_cure(tmp_path: Path) -> None:
    root = tmp_path / "store"
    node = RunningNode(root, [CONSOLE], queue_workers=1, readers=1)
    with node:
        for number in range(5):
            node.client.send("orders", b"message %d" % number, queue_id=0)
    log = next((root / "commitlog").iterdir())
    data = bytearray(log.read_bytes())
    data[data.index(b"message 2")] ^= 1
    log.write_bytes(data)
    with RunningNode(root, [CONSOLE], queue_workers=1, readers=1) as again:
        port = console_port(again.stderr)
        wait_until(lambda: ask(port, "/help").status == 200, "no console")
        text = ask(port, "/topics/orders", HTML).text
        assert "damaged" in text
        assert text.count("message ") >= 4
        damaged = ask(port, "/topics/orders/0/2", HTML)
        assert damaged.status == 500
        assert f"keelog store verify {root} --deep" in damaged.text
        assert "/topics/orders/0/3" in damaged.text


# -- who may start it -------------------------------------------------------------------------


def check(root: Path, *pairs: str, console: str, console_read: str = "open") -> None:
    serve = ServeSettings(console=console, console_read=console_read)
    before_start.check_console(Options(root, serve), load_settings(pairs))


def test_at_loopback_it_starts_without_a_login(tmp_path: Path) -> None:
    for place in ("7856", "127.0.0.1:0", "localhost:7856", "[::1]:7856", ""):
        check(tmp_path, console=place)


def test_beyond_loopback_it_starts_neither_without_a_login_nor_without_tls(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match="everybody there"):
        check(tmp_path, console="0.0.0.0:7856")
    with pytest.raises(BadRequest, match="without TLS"):
        check(tmp_path, console="0.0.0.0:7856", console_read="key")
    pair = Authority(tmp_path).pair("node")
    with pytest.raises(BadRequest, match="everybody there"):
        check(tmp_path, *pair.server, console="0.0.0.0:7856")
    check(tmp_path, *pair.server, console="0.0.0.0:7856", console_read="key")


def test_users_are_a_login_too(tmp_path: Path) -> None:
    write_users(tmp_path, AccessTable({"ann": User("ann", "a-secret-of-ann")}))
    pair = Authority(tmp_path).pair("node")
    check(tmp_path, *pair.server, console="0.0.0.0:7856")
    off = "authentication_enabled=false"
    with pytest.raises(BadRequest, match="everybody there"):
        check(tmp_path, *pair.server, off, console="0.0.0.0:7856")


def test_a_missing_library_is_named_with_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(before_start, "find_spec", lambda name: None if name == "jinja2" else 1)
    with pytest.raises(BadRequest, match="needs jinja2") as refused:
        check(tmp_path, console="7856")
    assert "pip install 'starlette" in refused.value.hint


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("console", "no port"), ("console_read", "all"), ("console_hosts", "a b"),
        ("console_hosts", "x:1"), ("console_path", "keelog"), ("console_path", "/a//b"),
        ("console_path", "/a/"), ("console_path", "/a?b"),
    ],
)  # fmt: skip
def test_settings_that_cannot_be_meant_are_refused(setting: str, value: str) -> None:
    with pytest.raises(BadRequest):
        settings_of(SERVE, (Given(f"serve.{setting}={value}", "-X", ""),))
