"""What an installation gets: the kernel where there is a compiler, all the rest in any case."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import hatch_build
from protocol.kernel import loader

ROOT = Path(hatch_build.__file__).parent


def wheel(folder: Path, env: dict[str, str]) -> zipfile.ZipFile:
    """The wheel of this tree, as `pip` makes one."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, env={**os.environ, **env}, check=True, capture_output=True)
    (found,) = folder.glob("*.whl")
    return zipfile.ZipFile(found)


@pytest.mark.process
@pytest.mark.parametrize("env", [{loader.SWITCH: "off"}, {"CC": "false"}, {"CC": "/no/such/cc"}])
def test_without_a_compiler_the_wheel_is_for_any_machine(
    tmp_path: Path, env: dict[str, str]
) -> None:
    with wheel(tmp_path, env) as found:
        assert (found.filename or "").endswith("-py3-none-any.whl")
        assert f"protocol/kernel/{loader.FILE}" not in found.namelist()
        assert "protocol/kernel/loader.py" in found.namelist()
        # Where the public names come from, or a user's checker takes them all for Any.
        assert {f"{name}/py.typed" for name in ("client", "keelog", "node", "protocol")} < {
            *found.namelist()
        }
        (points,) = (name for name in found.namelist() if name.endswith("/entry_points.txt"))
        assert b"[pytest11]" in found.read(points)


@pytest.mark.process
def test_with_a_compiler_the_wheel_holds_the_kernel_for_this_machine(tmp_path: Path) -> None:
    if hatch_build.compiler() is None:
        pytest.skip("no C compiler")
    before = Path(loader.path()).stat().st_mtime_ns if loader.active() else None
    with wheel(tmp_path, {loader.SWITCH: "on"}) as found:
        assert "-py3-none-linux_" in (found.filename or "")
        library = Path(found.extract(f"protocol/kernel/{loader.FILE}", tmp_path))
    assert loader.Kernel(str(library)).columns > 0
    after = Path(loader.path()).stat().st_mtime_ns if loader.active() else None
    assert after == before, "building a wheel changed the tree"
