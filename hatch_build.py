"""Builds wheels: the compiled kernel where there is a C compiler, and all packages inside `keelog`.

An installation without a compiler is complete: Python does the same work. KEELOG_KERNEL=off leaves
the kernel out on purpose; CC names another compiler. Why a compiler failed is shown by
`pip install -v`.

The tree has short names at its top: `node`, `workers`, `protocol`. In everybody's site-packages
they would meet other people's. A wheel has them as `keelog.node` and so on, with their imports
rewritten; an editable installation is the tree itself.
"""

import ast
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
OUTER = ("keelog", "pyspark_keelog")
INNER = ("protocol", "node", "workers")
"""What a wheel has inside of `keelog`."""
SUFFIXES = (".py", ".c", ".typed", ".html", ".css", ".js", ".svg")


def nested(source: str) -> str:
    """The source of a module with its imports of inner packages as imports from `keelog`."""
    lines = source.split("\n")
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in INNER:
            line = lines[node.lineno - 1]
            head, found, tail = line[: node.col_offset], "from ", line[node.col_offset + 5 :]
            lines[node.lineno - 1] = f"{head}{found}keelog.{tail}"
    return "\n".join(lines)


def nest(root: Path, folder: Path) -> dict[str, str]:
    """Writes every module below `folder` as a wheel has it. Answers file and place of each."""
    places = {}
    for package in (*OUTER, *INNER):
        for path in sorted((root / package).rglob("*")):
            if path.suffix not in SUFFIXES:
                continue
            place = path.relative_to(root)
            if package in INNER:
                place = Path("keelog") / place
            target = folder / place
            target.parent.mkdir(parents=True, exist_ok=True)
            if path.suffix == ".py":
                target.write_text(nested(path.read_text()))
            else:
                shutil.copyfile(path, target)
            places[str(target)] = place.as_posix()
    return places


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
        if not is_editable:
            tree = Path(self._folder.name) / "tree"
            build_data["force_include"].update(nest(root, tree))
        if os.environ.get("KEELOG_KERNEL", "").lower() == "off":
            why = "KEELOG_KERNEL=off"
        else:
            why = compile_kernel(root / SOURCE, library)
        if why:
            self.app.display_info(f"without the compiled kernel: {why}")
            return
        if not is_editable:
            build_data["force_include"][str(library)] = f"keelog/{LIBRARY}"
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Removes what the wheel was made from."""
        del version, build_data, artifact_path
        self._folder.cleanup()
