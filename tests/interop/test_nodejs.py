"""A client in another language, written from docs/protocol.md alone, works with a node."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.node import RunningNode

FOLDER = Path(__file__).parent / "nodejs"
INSTALL_S = 300
RUN_S = 120

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(INSTALL_S + 2 * RUN_S),
    pytest.mark.skipif(
        shutil.which("node") is None or shutil.which("npm") is None, reason="no Node.js here"
    ),
]


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scenario with its packages, installed outside of the tree."""
    folder = tmp_path_factory.mktemp("nodejs")
    for name in ("package.json", "client.js", "run.js"):
        shutil.copy(FOLDER / name, folder)
    command = ["npm", "install", "--no-audit", "--no-fund", "--no-package-lock"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=INSTALL_S)
    assert done.returncode == 0, done.stderr
    return folder


def test_a_nodejs_client_sends_reads_and_finds(client: Path, tmp_path: Path) -> None:
    settings = ("store.mapped_file_size_commit_log=1048576", "store.max_index_num=100000")
    with RunningNode(tmp_path / "store", settings) as node:
        done = subprocess.run(
            ["node", "run.js", node.endpoint],
            cwd=client, capture_output=True, text=True, timeout=RUN_S,
        )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    summary = json.loads(done.stdout)
    assert summary["ok"]
    assert summary["sent"] == summary["read"] == 1050
