"""The Java program at the begin of docs/rocketmq-clients.md, as it is printed there."""

import subprocess
from pathlib import Path

import pytest

from tests.interop import probe
from tests.support.node import RunningNode
from tests.support.pages import blocks
from tests.support.remoting import REMOTING, remoting_place

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(probe.why_missing()), reason=probe.why_missing()),
]
PAGE = Path(__file__).resolve().parents[2] / "docs" / "rocketmq-clients.md"
JAVA = probe.RUN.parent
PRINTED = "127.0.0.1:10911"


def test_the_first_program_sends_a_message_and_gets_it(tmp_path: Path) -> None:
    (block,) = [one for one in blocks(PAGE.read_text()) if one.language == "java"]
    assert block.text.count(PRINTED) == 2
    probe.build()
    libraries = (JAVA / "target" / "cp.txt").read_text().strip()
    with RunningNode(tmp_path / "store", [REMOTING], queue_workers=1, readers=1) as node:
        host, port = remoting_place(node.stderr)
        source = tmp_path / "First.java"
        source.write_text(block.text.replace(PRINTED, f"{host}:{port}"))
        done = subprocess.run(
            ["java", "-Xmx256m", f"-Duser.home={tmp_path}", "-cp", libraries, str(source)],
            capture_output=True, text=True, timeout=200, check=False,
        )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["SEND_OK", "three apples"]
