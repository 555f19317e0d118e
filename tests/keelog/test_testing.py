"""`keelog.testing` and the fixtures of pytest: a node for tests of programs that use Keelog."""

import os
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

import keelog
from keelog.pytest_plugin import pytest_runtest_makereport
from keelog.testing import TestNode
from protocol.errors import NotAllowed
from tests.support.node import wait_until


@pytest.mark.process
@pytest.mark.xdist_group("keelog_node")
@pytest.mark.parametrize("odd", ["a b/c", "ü", "x" * 300])
def test_each_test_has_a_topic_of_its_own_whatever_its_name(
    keelog_client: keelog.Client, keelog_topic: str, odd: str
) -> None:
    assert keelog_topic not in {topic.topic for topic in keelog_client.topics()}
    assert keelog_client.send(keelog_topic, odd.encode()).queue_offset == 0


@pytest.mark.process
@pytest.mark.xdist_group("keelog_node")
def test_a_process_that_a_test_kills_is_started_again(
    keelog_node: TestNode, keelog_client: keelog.Client, keelog_topic: str
) -> None:
    receipt = keelog_client.send(keelog_topic, b"x")
    keelog_node.kill_process("reader")
    assert keelog_client.get(receipt.msg_id).body == b"x"
    assert "signal 9" in keelog_node.log_end
    with pytest.raises(ValueError, match="no process 'readers'"):
        keelog_node.kill_process("readers")


PROGRAM = """
import sys, keelog
client = keelog.connect(sys.argv[1])
client.producer(linger=60).send_oneway(sys.argv[2], b"last words")
"""


@pytest.mark.process
@pytest.mark.xdist_group("keelog_node")
def test_the_end_of_a_program_sends_what_it_holds(
    keelog_node: TestNode, keelog_client: keelog.Client, keelog_topic: str
) -> None:
    words = [sys.executable, "-c", PROGRAM, keelog_node.endpoint, keelog_topic]
    subprocess.run(words, check=True, timeout=60)
    message = next(keelog_client.tail(keelog_topic, "earliest"))
    assert message.body == b"last words"


@pytest.mark.process
def test_a_node_that_cannot_start_says_why_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with (
        pytest.raises(keelog.ServiceNotAvailable, match="there is no setting 'flush_disk_typ'"),
        TestNode(settings={"flush_disk_typ": "SYNC_FLUSH"}),
    ):
        pass
    assert list(tmp_path.iterdir()) == []


TEST_THAT_HANGS = """
def test_of_a_user(keelog_node, tmp_path_factory):
    print("pids", *(child.pid for _, child in keelog_node._started().children()), flush=True)
    input()
"""


@pytest.mark.process
def test_a_node_does_not_outlive_a_pytest_that_is_killed(tmp_path: Path) -> None:
    (tmp_path / "test_user.py").write_text(TEST_THAT_HANGS)
    words = [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", str(tmp_path)]
    with subprocess.Popen(
        [*words, "--basetemp", str(tmp_path / "tmp")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as killed:
        assert killed.stdout is not None
        said = next(line for line in killed.stdout if "pids" in line)
        node = psutil.Process(killed.pid).children(recursive=True)
        assert {one.pid for one in node} > {int(word) for word in said.split()[1:]}
        killed.kill()
    assert psutil.wait_procs(node, 60)[1] == []


@pytest.mark.process
def test_a_node_outlives_the_thread_that_started_it() -> None:
    node = TestNode()
    starter = threading.Thread(target=node.start)
    starter.start()
    starter.join()
    task = Path(f"/proc/self/task/{starter.native_id}")
    wait_until(lambda: not task.exists(), "the thread does not end")
    try:
        with node.connect() as client:
            # A signal that came with its end is seen by the supervisor's turn behind the first.
            states = {client.status().raw["supervisor"]["state"] for _ in range(3)}
            assert states == {"running"}
            assert client.send("orders", b"x").status == "PUT_OK"
    finally:
        node.stop()


def outcome_of(report: SimpleNamespace) -> SimpleNamespace:
    """As pluggy hands it to a wrapper."""
    return SimpleNamespace(excinfo=None, get_result=lambda: report)


@pytest.mark.parametrize("failed", [True, False])
def test_what_the_node_said_stands_beside_a_test_that_failed(failed: bool) -> None:
    item = SimpleNamespace(funcargs={"keelog_node": SimpleNamespace(log_end="a segment is full")})
    report = SimpleNamespace(failed=failed, sections=[])
    hook = pytest_runtest_makereport(item)  # type: ignore[arg-type]
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(outcome_of(report))
    assert report.sections == ([("keelog node", "a segment is full")] if failed else [])


def test_tests_without_the_node_have_the_reports_that_they_had() -> None:
    report = SimpleNamespace(failed=True, sections=[])
    hook = pytest_runtest_makereport(SimpleNamespace(funcargs={}))  # type: ignore[arg-type]
    next(hook)
    with pytest.raises(StopIteration):
        hook.send(outcome_of(report))
    assert report.sections == []


OLD_PYTEST = """
import sys, types

def fixture(function=None, scope=None):
    return function or (lambda function: function)

def hookimpl(hookwrapper=False):
    return lambda function: function

class Item:
    pass

sys.modules["pytest"] = types.SimpleNamespace(fixture=fixture, hookimpl=hookimpl, Item=Item)
import keelog.pytest_plugin
"""


def test_the_plugin_ends_no_run_of_an_older_pytest() -> None:
    """It is imported unasked. pytest 6 has no names for reports, pluggy 1.0 no `wrapper`."""
    subprocess.run([sys.executable, "-c", OLD_PYTEST], check=True)


@pytest.mark.process
def test_groups_and_delays_work_at_a_test_node_and_can_be_left_out() -> None:
    with TestNode() as node, node.connect() as client:
        client.send("orders", b"later", delay=0.2)
        with client.consumer("billing", "orders", start="earliest") as consumer:
            message = consumer.get(30.0)
        assert message is not None
        assert message.body == b"later"
    with TestNode(settings={"serve.remoting": ""}) as node, node.connect() as client:
        with pytest.raises(NotAllowed) as caught:
            client.consumer("billing", "orders")
        assert "--remoting" in caught.value.hint
        assert "cursor" in caught.value.hint
