"""Builds the compiled kernel into the package where there is a C compiler, and leaves it out else.

An installation without a compiler is complete: numpy does the same work. KEELOG_KERNEL=off leaves
the kernel out on purpose; CC names another compiler. Why a compiler failed is shown by
`pip install -v`.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SOURCE = "protocol/kernel/kernel.c"
LIBRARY = "protocol/kernel/_kernel.so"
FLAGS = ("-O3", "-std=gnu11", "-fPIC", "-shared", "-fvisibility=hidden")
COMPILE_S_MAX = 120.0


def compiler() -> list[str] | None:
    """The command of a C compiler: CC, or the first of the usual names that there is."""
    if os.environ.get("CC"):
        return shlex.split(os.environ["CC"])
    found = next((name for name in ("cc", "gcc", "clang") if shutil.which(name)), None)
    return [found] if found else None


def digest_of(folder: Path) -> str:
    """Of all sources there: kernel.c, and the files that it includes."""
    sources = sorted(folder.glob("kernel*.c"))
    return hashlib.sha256(b"".join(source.read_bytes() for source in sources)).hexdigest()


def compile_kernel(source: Path, library: Path, flags: tuple[str, ...] = FLAGS) -> str:
    """Compiles `source` to `library`, whole or not at all. Answers why not, empty when it did."""
    command = compiler()
    if command is None:
        return "no C compiler (cc, gcc, clang or CC)"
    digest = digest_of(source.parent)
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        built = Path(folder) / library.name
        define = f'-DKERNEL_SOURCE="{digest}"'
        try:
            subprocess.run(
                [*command, *flags, define, "-o", str(built), str(source)],
                check=True,
                capture_output=True,
                text=True,
                timeout=COMPILE_S_MAX,
            )
        except subprocess.CalledProcessError as error:
            return f"{command[0]} failed: {error.stderr.strip()}"
        except (OSError, subprocess.TimeoutExpired) as error:
            return f"{command[0]}: {error}"
        built.replace(library)
    return ""


class KernelHook(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles before a wheel is put together: for an editable one beside its source."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Builds, and tags the wheel for this platform when there is something to tag it for."""
        root = Path(self.root)
        self._folder = tempfile.TemporaryDirectory()
        is_editable = version == "editable"
        library = root / LIBRARY if is_editable else Path(self._folder.name) / Path(LIBRARY).name
        library.unlink(missing_ok=True)
        if os.environ.get("KEELOG_KERNEL", "").lower() == "off":
            why = "KEELOG_KERNEL=off"
        else:
            why = compile_kernel(root / SOURCE, library)
        if why:
            self.app.display_info(f"without the compiled kernel: {why}")
            return
        if not is_editable:
            build_data["force_include"][str(library)] = LIBRARY
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what the wheel was made from."""
        del version, build_data, artifact_path
        self._folder.cleanup()
