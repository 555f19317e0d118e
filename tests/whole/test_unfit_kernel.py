"""A compiled kernel that is there and does not fit, as an earlier build leaves it: the node runs
without, and says so where people look."""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from protocol.kernel.loader import BUILD_AGAIN, FILE, SWITCH
from tests.support.node import RunningNode

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("keelog", "node", "protocol", "workers")


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """The variables for an installation of its own, whose library is none."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, tmp_path / "lib" / name)
    (tmp_path / "lib" / "protocol" / "kernel" / FILE).write_bytes(b"of another machine")
    others = {name: value for name, value in os.environ.items() if name != SWITCH}
    return {**others, "PYTHONPATH": str(tmp_path / "lib"), "PYTHONSAFEPATH": "1"}


@pytest.mark.process
def test_a_kernel_that_does_not_fit_is_named_by_the_log_status_and_diag(
    tmp_path: Path, env: dict[str, str]
) -> None:
    def keelog(*words: str) -> str:
        command = [sys.executable, "-m", "keelog", *words]
        return subprocess.run(command, env=env, capture_output=True, text=True, check=True).stdout

    why = f"{tmp_path}/lib/protocol/kernel/{FILE}"
    with RunningNode(tmp_path / "store", readers=1, queue_workers=1, env=env) as node:
        warnings = [line for line in node.stderr.splitlines() if "kernel is not used" in line]
        assert len(warnings) == 1
        assert why in warnings[0]
        assert BUILD_AGAIN in warnings[0]
        found = json.loads(keelog("status", "--node", node.endpoint, "--json"))["kernel"]
        assert found.startswith(f"numpy: {why}")
        assert found.endswith(BUILD_AGAIN)
        table = keelog("status", "--node", node.endpoint, "--format", "table")
        assert f"kernel: {found}" in table.splitlines()
        keelog("diag", "--node", node.endpoint, "-o", str(tmp_path / "diag.zip"))
    with zipfile.ZipFile(tmp_path / "diag.zip") as bundle:
        (versions,) = (name for name in bundle.namelist() if name.endswith("versions.json"))
        assert json.loads(bundle.read(versions))["kernel"] == found
