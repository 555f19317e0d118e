"""A node's HTTP end: its health, its metrics, and what the board and the alerts make of them."""

import json
import re
import shutil
import socket
import subprocess
import threading
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import NamedTuple

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families

from keelog.cli.main import cli
from tests.support.node import RunningNode, wait_until
from tests.test_deploy import ALERTS, load, watched_exprs

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("http-node")]

METRIC = re.compile(r"\b(?:keelog|rocketmq)_(?!replica|followers|elected)[a-z_]+\b")
"""Replication and elections have tests of their own: only a master and its replica have the metrics
of the one, only nodes with controllers those of the other."""
COMPARISON = re.compile(r"(\w+) (==|>) ([0-9.]+)")
Sample = tuple[str, frozenset[tuple[str, str]]]


class Watched(NamedTuple):
    """A node, where its pages are, and what its service manager has heard."""

    node: RunningNode
    url: str
    heard: list[str]

    def get(self, path: str) -> tuple[int, str]:
        try:
            with urllib.request.urlopen(self.url + path, timeout=30) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            return error.code, error.read().decode()

    def scrape(self) -> dict[Sample, float]:
        status, text = self.get("/metrics")
        assert status == 200
        return {
            (sample.name, frozenset(sample.labels.items())): sample.value
            for family in text_string_to_metric_families(text)
            for sample in family.samples
        }

    def value(self, name: str, **labels: str) -> float:
        found = [
            value
            for (other, having), value in self.scrape().items()
            if other == name and having >= labels.items()
        ]
        assert len(found) == 1, f"{name}{labels}: {found}"
        return found[0]

    def wait_restarted(self, role: str) -> None:
        """Returns when a process that was killed once is counted, and runs again."""
        wait_until(
            lambda: self.value("keelog_process_restarts_total", role=role, reason="killed") == 1,
            "the restart is not counted",
        )
        self.node.wait_all_run()

    def is_firing(self, alert: str) -> bool:
        """Whether an alert's expression, one comparison, is true of a sample."""
        rule = next(one for one in load(ALERTS)["groups"][0]["rules"] if one["alert"] == alert)
        match = COMPARISON.fullmatch(rule["expr"])
        assert match is not None, rule["expr"]
        values = [value for (name, _), value in self.scrape().items() if name == match[1]]
        assert values
        limit = float(match[3])
        return any(value == limit if match[2] == "==" else value > limit for value in values)


def listen(manager: socket.socket, heard: list[str]) -> None:
    """At once, as the kernel keeps ten datagrams: a node that starts slowly says more than that."""
    while data := manager.recv(4096):
        heard.append(data.decode() + "\n")


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    root = tmp_path_factory.mktemp("http")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(str(root / "notify"))
        heard: list[str] = []
        threading.Thread(target=listen, args=(manager, heard), daemon=True).start()
        env = {
            "KEELOG_HTTP": "127.0.0.1:0",
            "NOTIFY_SOCKET": str(root / "notify"),
            "WATCHDOG_USEC": "2000000",
        }
        small = ["mapped_file_size_commit_log=1048576"]
        node = RunningNode(
            root / "store", small, queue_workers=1, readers=1, restart_limit=2, env=env
        )
        with node:
            url = node.client.status().raw["http"]
            assert f"metrics {url}/metrics)" in node.stderr  # the ready line says where
            node.client.producer().send_many("orders", [b"x" * 100] * 50)
            yield Watched(node, url, heard)
        manager.shutdown(socket.SHUT_RDWR)


def test_the_service_manager_hears_of_start_readiness_and_life(watched: Watched) -> None:
    def is_told() -> bool:
        heard = "".join(watched.heard)
        return "READY=1" in heard and heard.count("WATCHDOG=1") > 1

    wait_until(is_told, "the service manager has not heard of it")
    heard = "".join(watched.heard)
    assert heard.index("EXTEND_TIMEOUT_USEC=") < heard.index("READY=1")
    assert "STATUS=all processes run" in heard


def test_a_node_that_runs_is_alive_ready_and_tells_each_check(watched: Watched) -> None:
    assert watched.get("/livez") == (200, "ok\n")
    assert watched.get("/readyz") == (200, "ready\n")
    status, text = watched.get("/readyz?verbose=1")
    assert status == 200
    assert "[+] writer: 1 of 1 running\n" in text
    assert "[+] index_worker: 1 of 1 running (not needed to be ready)\n" in text
    assert json.loads(watched.get("/readyz?format=json")[1])["ready"] is True
    status, text = watched.get("/healthz")
    assert status == 200
    assert "queue 0: running, pid" in text
    assert watched.get("/nowhere")[0] == 404


def test_every_metric_of_the_board_and_the_alerts_is_scraped(watched: Watched) -> None:
    there = {name for name, _ in watched.scrape()}
    named = {name for expr in watched_exprs() for name in METRIC.findall(expr)}
    assert len(named) > 20
    assert named <= there


def test_promtool_takes_the_metrics(watched: Watched) -> None:
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not on the PATH (Debian: apt-get install prometheus)")
    done = subprocess.run(
        [promtool, "check", "metrics"],
        input=watched.get("/metrics")[1],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_metrics_say_what_was_appended_and_how_far_the_others_are(watched: Watched) -> None:
    node = watched.node
    node.wait_dispatched()
    log = node.log_state()
    assert watched.value("keelog_commitlog_messages_total") == log.records == 50
    assert watched.value("rocketmq_throughput_in_total") == log.appended
    assert watched.value("keelog_commitlog_max_offset_bytes") == log.appended
    assert watched.value("keelog_dispatch_lag_bytes", target="cq") == 0
    assert watched.value("rocketmq_topic_number") == 1
    assert 0 <= watched.value("rocketmq_storage_message_reserve_time") < 600_000
    assert watched.value("keelog_process_resident_memory_bytes", role="writer") > 2**20


def test_messages_are_counted_by_topic_when_they_come_and_when_they_go(watched: Watched) -> None:
    def counted(name: str) -> float:
        # A topic has no line before the first of its messages is counted.
        samples = watched.scrape().items()
        return sum(
            value
            for (other, labels), value in samples
            if other == f"rocketmq_{name}_total" and ("topic", "orders") in labels
        )

    orders = watched.node.client.tail("orders", "earliest")
    assert [message.topic for message in islice(orders, 50)] == ["orders"] * 50
    wait_until(lambda: counted("messages_in") == 50, "what came is not counted")
    wait_until(lambda: counted("messages_out") == 50, "what went is not counted")
    assert counted("throughput_out") > 50 * 100


def test_the_stages_of_all_appends_make_up_their_durations(watched: Watched) -> None:
    def value(name: str, **labels: str) -> float:
        return watched.value(name, op="append", **labels)

    def waited() -> float:
        return value(f"{stage}_count", stage="flush")

    total, stage = "keelog_request_duration_seconds", "keelog_request_stage_duration_seconds"
    before = waited()
    watched.node.client.send("orders", b"flushed", acks="flushed")
    wait_until(lambda: waited() == before + 1, "the append that waited is not counted")
    requests = value("keelog_requests_total", code="OK")
    for one in ("queue", "append", "reply"):
        assert value(f"{stage}_count", stage=one) == value(f"{total}_count") == requests
    parts = [value(f"{stage}_sum", stage=one) for one in ("queue", "append", "flush", "reply")]
    assert sum(parts) == pytest.approx(value(f"{total}_sum"))


def with_a_queue(node: RunningNode) -> RunningNode:
    node.client.send("orders", b"first", queue_id=0)
    queue = node.root / "consumequeue/orders/0/00000000000000000000"
    wait_until(queue.exists, "the queue has no file")
    return node


SECRETS = {
    "body": "s3cret-body",
    "key": "s3cret-key",
    "name": "s3cret_name",
    "tag": "s3cret-tag",
    "value": "s3cret-value",
    "credential": "s3cret-token",
}
VARIABLES = ("KEELOG_TOKEN", "KEELOG_PASSWORD", "DB_PASSWORD", "AWS_SECRET_ACCESS_KEY")


def send_secrets(node: RunningNode, stop: threading.Event) -> None:
    while not stop.is_set():
        node.client.send(
            "orders",
            SECRETS["body"].encode(),
            keys=SECRETS["key"],
            tags=SECRETS["tag"],
            properties={SECRETS["name"]: SECRETS["value"]},
        )


@pytest.fixture
def support_files(
    watched: Watched, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, str]:
    """What `keelog diag` gathers while somebody sends; everything that is secret is around it."""
    token, node = SECRETS["credential"], with_a_queue(watched.node)
    for variable in VARIABLES:
        monkeypatch.setenv(variable, token)
    log = tmp_path / "node.log"
    log.write_text(
        f"password={token}\nsent to http://me:{token}@host/\nAuthorization: Bearer {token}\n"
        f'{{"event": "x", "api_key": "{token}", "why": "tcp://:{token}@host:1"}}\n'
    )
    out, stop = tmp_path / "diag.zip", threading.Event()
    sender = threading.Thread(target=send_secrets, args=(node, stop))
    sender.start()
    try:
        words = ["diag", "-o", str(out), "--log", str(log), "--node", node.endpoint, "--json"]
        result = CliRunner().invoke(cli, words, standalone_mode=False)
    finally:
        stop.set()
        sender.join()
    assert result.exception is None
    answer = json.loads(result.stdout)
    assert (answer["path"], answer["problems"]) == (str(out), [])
    assert out.stat().st_mode & 0o077 == 0
    with zipfile.ZipFile(out) as zip_:
        files = {name: zip_.read(name).decode() for name in zip_.namelist()}
    assert list(files) == answer["files"]
    return files


def test_the_file_for_support_holds_numbers_and_no_word_of_a_message(
    watched: Watched, support_files: dict[str, str]
) -> None:
    files = support_files
    for name, text in files.items():
        assert not [secret for secret in SECRETS.values() if secret in text], name
    assert "rocketmq_messages_in_total" in files["metrics.txt"]
    assert "KEELOG_TOKEN" in files["environment.json"]
    assert files["log.txt"].splitlines()[0] == "password=***"
    listed = {row["file"] for row in json.loads(files["store/files.json"])["files"]}
    assert {
        "commitlog/00000000000000000000",
        "consumequeue/orders/0/00000000000000000000",
    } <= listed
    settings = json.loads(files["settings.json"])
    assert "mapped_file_size_commit_log=1048576" in settings
    origins = {row["setting"]: row["where"] for row in json.loads(files["origins.json"])}
    assert origins["serve.http"] == "KEELOG_HTTP"
    assert "store.mapped_file_size_commit_log" in origins
    assert json.loads(files["status.json"])["http"] == watched.url
    names = {row["name"] for row in json.loads(files["processes.json"])}
    assert {"keelog-serve", "keelog-writer", "keelog-queue-0"} <= names
    assert json.loads(files["store/own.json"])["owner_epoch"] is not None
    assert "physic_msg_timestamp" in files["store/checkpoint.json"]
    assert json.loads(files["store/pages.json"]).keys() == {
        "log",
        "queue-0-of-1",
        "index",
        "reader-0",
    }


def test_counters_keep_growing_when_the_writer_is_started_again(watched: Watched) -> None:
    node = watched.node
    before = watched.scrape()
    (messages,) = [key for key in before if key[0] == "keelog_commitlog_messages_total"]
    node.kill("writer")
    watched.wait_restarted("writer")
    node.client.send("orders", b"after")
    assert watched.scrape()[messages] == before[messages] + 1
    after = watched.scrape()
    shrunk = {
        key: (before[key], after[key])
        for key in before
        if key[0].endswith(("_total", "_bucket", "_sum", "_count")) and after[key] < before[key]
    }
    assert not shrunk


def test_a_worker_that_stays_down_is_an_alert(watched: Watched) -> None:
    alerts = ("KeelogProcessDown", "KeelogNotReady", "KeelogDamage")
    assert [watched.is_firing(alert) for alert in alerts] == [False, False, False]
    node = watched.node
    node.kill("index")
    watched.wait_restarted("index")
    node.kill("index")
    wait_until(lambda: "index 0: failing" in watched.get("/healthz")[1], "no crash loop")
    assert watched.value("keelog_process_up", role="index") == 0
    assert [watched.is_firing(alert) for alert in alerts] == [True, False, False]
    assert watched.get("/readyz")[0] == 200
    assert "[-] index_worker: " in watched.get("/readyz")[1]


def test_without_a_writer_the_node_is_alive_and_not_ready(watched: Watched) -> None:
    watched.node.kill("writer")
    wait_until(lambda: watched.is_firing("KeelogNotReady"), "it is still ready")
    status, text = watched.get("/readyz")
    assert status == 503
    assert re.search(r"\[-\] appends: refused, read_only: the writer is failing", text)
    assert watched.get("/livez")[0] == 200
