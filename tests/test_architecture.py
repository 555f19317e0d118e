"""Who may import whom, and how long things may be: the tables are the rule for the whole tree."""

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Set
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path, PurePosixPath

import pytest

from hatch_build import INNER

ROOT = Path(__file__).resolve().parents[1]
PRODUCT = ("protocol", "node", "workers", "keelog")
OURS = (*PRODUCT, "pyspark_keelog", "scripts", "tests")


def _may_import() -> dict[str, tuple[str, ...]]:
    """The table of ARCHITECTURE.md: a module obeys its longest prefix, and imports that one too."""
    table = {}
    for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines():
        row = re.match(r"\| `([a-z_/]+)/` \|.*\| (.+) \|$", line)
        if row is not None:
            name = row[1].replace("/", ".")
            allowed = re.findall(r"`([a-z_/]+)`", row[2])
            table[name] = (name, *(found.replace("/", ".") for found in allowed))
            if row[2] == "everything":
                table[name] = OURS
    return table


MAY_IMPORT = _may_import()

# Every prefix of a module's name counts. It must not import these, whoever they belong to.
STILL = "os io mmap socket threading time logging zmq psutil pathlib subprocess asyncio"
MUST_NOT_IMPORT: dict[str, tuple[str, ...]] = {
    "protocol": (*STILL.split(), "pyspark"),
    "node": ("pyspark",),
    "workers": ("pyspark", "workers.consume_queue*", "workers.index_file*"),  # never each other
    "keelog": ("pyspark",),
}
# Modules, with all below them, that may import some of it.
EXEMPT = {
    "keelog.pipeline": ("pyspark",),
    # It runs both handlers, one after the other, on a store at rest.
    "workers.rebuild": ("workers.consume_queue*", "workers.index_file*"),
    # One environment variable, once.
    "protocol.kernel.loader": ("os",),
}

# Who changes files in node/ and workers/ does it through node.store.disk, the storage seam.
SEAM = "node/runtime/disk.py"
# Locks, pages of shared numbers, pipes, log lines: no power loss needs to spare them.
BESIDE_THE_SEAM = {
    SEAM,
    "node/runtime/event_log.py",
    "node/runtime/locks.py",
    "node/runtime/process.py",
    "node/runtime/state_page.py",
    "node/runtime/stats.py",
    "node/supervisor/before_start.py",
}
WRITING_CALLS = {
    "pwrite",
    "pwritev",
    "write_text",
    "write_bytes",
    "fdatasync",
    "fsync",
    "ftruncate",
    "truncate",
    "posix_fallocate",
    "rename",
    "renames",
    "unlink",
    "rmdir",
    "removedirs",
    "mkdir",
    "makedirs",
    "link",
    "symlink",
    "rmtree",
    "copytree",
    "copyfile",
}
WRITING_FLAGS = {"O_RDWR", "O_WRONLY", "O_CREAT", "O_TRUNC", "O_APPEND"}

FILE_LINES_MAX = 900
FUNCTION_LINES_MAX = 60
NAMES_WITHOUT_MEANING = {"utils", "common", "helpers", "manager"}
INIT_WITH_CODE = {
    "keelog/__init__.py",
    "keelog/bench/__init__.py",
    "keelog/cli/__init__.py",
    "pyspark_keelog/__init__.py",
}


def _module(path: str) -> str:
    return ".".join(PurePosixPath(path).with_suffix("").parts).removesuffix(".__init__")


def _below(module: str, prefixes: tuple[str, ...]) -> bool:
    return any(
        module.startswith(prefix[:-1])
        if prefix.endswith("*")
        else f"{module}.".startswith(f"{prefix}.")
        for prefix in prefixes
    )


def _imports(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Line and full name of everything that is imported, `from a import b` as `a.b`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            yield from ((node.lineno, f"{start}.{alias.name}") for alias in node.names)


@lru_cache(maxsize=1)
def _parsed(source: str) -> ast.Module:
    """All rules look at one file before the next one."""
    return ast.parse(source)


def import_faults(path: str, source: str) -> list[str]:
    module, faults = _module(path), []
    rooms = [name for name in MAY_IMPORT if _below(module, (name,))]
    ours = MAY_IMPORT[max(rooms, key=len)] if rooms else ()
    exempt = {name for key, names in EXEMPT.items() if _below(module, (key,)) for name in names}
    banned = [
        name
        for key, names in MUST_NOT_IMPORT.items()
        if _below(module, (key,))
        for name in names
        if name not in exempt
    ]
    for line, target in _imports(_parsed(source)):
        if target.startswith("."):
            faults.append(f"{path}:{line}: relative import {target}")
        elif _below(target, OURS) and not _below(target, ours):
            faults.append(f"{path}:{line}: must not import {target}, only {', '.join(ours)}")
        elif any(_below(target, (name,)) and not _below(module, (name,)) for name in banned):
            faults.append(f"{path}:{line}: must not import {target}")
    return faults


def _writes(node: ast.AST) -> str | None:
    """What a node of the syntax tree says that changes a file; None: nothing."""
    if isinstance(node, ast.Attribute) and node.attr in WRITING_FLAGS:
        return node.attr
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    owner, name = node.func.value, node.func.attr
    owner_name = owner.id if isinstance(owner, ast.Name) else ""
    if name in WRITING_CALLS and owner_name != "disk":
        return name
    if owner_name == "os" and name in ("write", "replace", "remove"):
        return f"os.{name}"
    modes = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
    is_writing = any(isinstance(mode, str) and set(mode) & set("wax+") for mode in modes)
    return "open to write" if name == "open" and is_writing else None


def seam_faults(path: str, source: str) -> list[str]:
    if not path.startswith(("node/", "workers/")) or path in BESIDE_THE_SEAM:
        return []
    return [
        f"{path}:{getattr(node, 'lineno', 0)}: {what}: files are changed through {SEAM}"
        for node in ast.walk(_parsed(source))
        if (what := _writes(node)) is not None
    ]


def size_faults(path: str, source: str) -> list[str]:
    if not path.startswith(tuple(f"{name}/" for name in PRODUCT)):
        return []
    lines = source.count("\n")
    faults = [f"{path}: {lines} lines, {FILE_LINES_MAX} at most"] if lines > FILE_LINES_MAX else []
    for node in ast.walk(_parsed(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            size = (node.end_lineno or node.lineno) - node.lineno + 1
            if size > FUNCTION_LINES_MAX:
                faults.append(f"{path}::{node.name}: {size} lines, {FUNCTION_LINES_MAX} at most")
    return faults


def name_faults(path: str, source: str) -> list[str]:
    meaningless = NAMES_WITHOUT_MEANING.intersection(PurePosixPath(path).with_suffix("").parts)
    return [f"{path}: {name} says nothing about what is inside" for name in meaningless]


def init_faults(path: str, source: str) -> list[str]:
    if not path.endswith("/__init__.py") or path in INIT_WITH_CODE:
        return []
    tree = _parsed(source)
    if ast.get_docstring(tree) and len(tree.body) == 1:
        return []
    return [f"{path}: must hold a docstring and nothing else"]


def nest_faults(path: str, source: str) -> list[str]:
    """`import node.x` binds another name where `node` lies inside of `keelog` (hatch_build.py)."""
    if PurePosixPath(path).parts[0] not in (*PRODUCT, "pyspark_keelog"):
        return []
    return [
        f"{path}:{node.lineno}: import {alias.name}: write from {alias.name} import"
        for node in ast.walk(_parsed(source))
        if isinstance(node, ast.Import)
        for alias in node.names
        if _below(alias.name, INNER)
    ]


Rule = Callable[[str, str], list[str]]
RULES: tuple[Rule, ...] = (
    import_faults,
    nest_faults,
    seam_faults,
    size_faults,
    name_faults,
    init_faults,
)


def test_the_tree_keeps_every_rule() -> None:
    paths = sorted(path for top in OURS for path in (ROOT / top).rglob("*.py"))
    assert len(paths) > 10, "the tree was not found"
    faults = []
    for path in paths:
        source = path.read_text()
        for rule in RULES:
            faults += rule(path.relative_to(ROOT).as_posix(), source)
    assert not faults, "\n".join(faults)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("protocol/a.py", "import os"),
        ("protocol/a.py", "from os.path import join"),
        ("protocol/a.py", "import numpy, socket"),
        ("protocol/a.py", "def f():\n    import time"),
        ("protocol/a.py", "from node.store import segment"),
        ("protocol/a.py", "from .record import Record"),
        ("node/store/a.py", "from node.writer.loop import step"),
        ("node/store/a.py", "from node import writer"),
        ("node/store/a.py", "import node"),
        ("keelog/client/client.py", "from node.store.log.segment import Segment"),
        ("keelog/client/client.py", "from node.runtime.settings import Settings"),
        ("keelog/client/send/a.py", "import node.writer.loop"),
        ("node/runtime/a.py", "from node.store import base"),
        ("node/reader/a.py", "from node.writer.loop import Writer"),
        ("node/writer/loop.py", "from workers.dispatch import follow"),
        ("node/writer/loop.py", "import keelog"),
        ("workers/dispatch.py", "from node.writer.log.commit_log import CommitLog"),
        ("workers/dispatch.py", "from workers.consume_queue import ConsumeQueues"),
        ("workers/consume_queue.py", "from workers import index_file"),
        ("workers/index_file.py", "from workers.consume_queue_files import Files"),
        ("keelog/pipeline/source.py", "from node.writer.loop import step"),
        ("keelog/pipeline/source.py", "import workers.dispatch"),
        ("keelog/pipeline/source.py", "from tests.support import golden"),
        ("keelog/store.py", "from pyspark.sql import SparkSession"),
        ("keelog/store.py", "from scripts.bench_send import run"),
        ("scripts/bench_send.py", "from tests.support import golden"),
    ],
)
def test_a_forbidden_import_is_found(path: str, source: str) -> None:
    assert len(import_faults(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("protocol/a.py", "import numpy as np, msgpack, zlib\nfrom protocol.ids import Queue"),
        ("protocol/a.py", "import osmosis"),
        ("node/store/a.py", "import os, mmap\nfrom node import store"),
        ("node/writer/loop.py", "from node.store.log.segment import Segment\nimport node.runtime"),
        ("keelog/client/client.py", "from keelog.client.results import Receipt"),
        ("workers/consume_queue.py", "from workers.dispatch import follow"),
        ("workers/consume_queue.py", "from workers.consume_queue_files import Files"),
        ("workers/index_file.py", "from workers import dispatch"),
        ("keelog/pipeline/source.py", "import pyspark\nfrom keelog.client.client import Client"),
        ("pyspark_keelog/__init__.py", "import pyspark\nfrom keelog.pipeline import source"),
        (
            "keelog/store.py",
            "from node.store.log.segment import Segment\nimport keelog.pipeline.jobs",
        ),
        ("tests/test_a.py", "import scripts.bench_send, tests.support, pyspark, os"),
    ],
)
def test_an_allowed_import_is_left_alone(path: str, source: str) -> None:
    assert import_faults(path, source) == []


def _folder(module: str, modules: Set[str]) -> str:
    """The folder of what is imported: the longest part of the name that is a module, and up."""
    while module and module not in modules:
        module = module.rpartition(".")[0]
    return module.rpartition(".")[0]


def folder_circle(sources: Mapping[str, str]) -> list[str]:
    """Folders that import each other round about; one inside the other count as one."""
    modules = {_module(path) for path in sources if not path.endswith("__init__.py")}
    follows: dict[str, set[str]] = {}
    for path, source in sources.items():
        start = PurePosixPath(path).parent.as_posix().replace("/", ".")
        for _, target in _imports(ast.parse(source)):
            stop = _folder(target, modules)
            if stop and not _below(start, (stop,)) and not _below(stop, (start,)):
                follows.setdefault(start, set()).add(stop)
    try:
        TopologicalSorter(follows).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _product() -> dict[str, str]:
    paths = [path for top in PRODUCT for path in (ROOT / top).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text() for path in paths}


def test_no_two_folders_import_each_other_round_about() -> None:
    assert folder_circle(_product()) == []


def test_a_circle_of_folders_is_found_and_a_folder_with_those_inside_it_is_none() -> None:
    tree = {"a/x.py": "import b.y", "b/y.py": "import c.z", "c/z.py": "from a import x"}
    assert len(folder_circle(tree)) == 4
    assert folder_circle({**tree, "c/z.py": "import os"}) == []
    assert folder_circle({"a/x.py": "import a.b.y", "a/b/y.py": "import a.x"}) == []


def test_too_long_files_and_functions_are_found_in_product_code_alone() -> None:
    function = "def f() -> None:\n" + "    pass\n" * (FUNCTION_LINES_MAX - 1)
    assert size_faults("node/a.py", function) == []
    assert len(size_faults("node/a.py", function + "    pass\n")) == 1
    assert len(size_faults("node/a.py", "async " + function + "    pass\n")) == 1
    assert size_faults("node/a.py", "A = 1\n" * FILE_LINES_MAX) == []
    assert len(size_faults("node/a.py", "A = 1\n" * (FILE_LINES_MAX + 1))) == 1
    assert size_faults("tests/test_a.py", "A = 1\n" * (FILE_LINES_MAX + 1)) == []


@pytest.mark.parametrize(
    "source",
    [
        "os.pwrite(fd, data, 0)",
        "path.unlink()",
        "os.replace(a, b)",
        "path.open('wb')",
        "os.open(path, os.O_RDWR | os.O_CLOEXEC)",
        "def f():\n    path.parent.mkdir(exist_ok=True)",
    ],
)
def test_a_write_beside_the_storage_seam_is_found(source: str) -> None:
    assert seam_faults("workers/a.py", source)
    assert seam_faults(SEAM, source) == []
    assert seam_faults("scripts/a.py", source) == []


def test_reading_and_writing_through_the_seam_is_no_fault() -> None:
    source = "disk.unlink(p)\nos.open(p, os.O_RDONLY)\np.open('rb')\n'a'.replace('b', 'c')"
    assert seam_faults("node/a.py", source) == []


@pytest.mark.parametrize("path", ["node/utils.py", "keelog/common/a.py", "tests/helpers.py"])
def test_a_module_name_without_meaning_is_found(path: str) -> None:
    assert len(name_faults(path, "")) == 1


def test_an_import_that_a_wheel_would_change_is_found() -> None:
    assert len(nest_faults("keelog/pipeline/a.py", "import node.runtime")) == 1
    assert nest_faults("keelog/pipeline/a.py", "import keelog\nfrom node.runtime import disk") == []
    assert nest_faults("tests/a.py", "import node.runtime") == []


def test_code_in_an_init_is_found() -> None:
    assert init_faults("node/__init__.py", '"""What this is."""\n') == []
    assert len(init_faults("node/__init__.py", "")) == 1
    assert len(init_faults("node/__init__.py", '"""What this is."""\nimport os\n')) == 1
    assert init_faults("keelog/__init__.py", "import os\n") == []


def _is_anonymous_tuple(annotation: ast.expr | None) -> bool:
    """True for `tuple[int, str]`, alone, quoted or in a union; `tuple[int, ...]` is a sequence."""
    match annotation:
        case ast.Constant(value=str(text)):
            return _is_anonymous_tuple(ast.parse(text, mode="eval").body)
        case ast.BinOp(left=left, right=right):
            return _is_anonymous_tuple(left) or _is_anonymous_tuple(right)
        case ast.Subscript(value=ast.Name(id="tuple"), slice=ast.Tuple(elts=elements)):
            return not any(isinstance(one, ast.Constant) and one.value is ... for one in elements)
    return False


def tuple_faults(path: str, source: str) -> list[str]:
    return [
        f"{path}:{argument.lineno}: {function.name} takes {argument.arg} as an anonymous tuple:"
        " name its parts as parameters, or give the bundle a NamedTuple"
        for function in ast.walk(ast.parse(source))
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for argument in ast.walk(function.args)
        if isinstance(argument, ast.arg) and _is_anonymous_tuple(argument.annotation)
    ]


def test_no_function_takes_an_anonymous_tuple() -> None:
    faults = [
        fault
        for top in (*PRODUCT, "pyspark_keelog", "scripts")
        for path in sorted((ROOT / top).rglob("*.py"))
        for fault in tuple_faults(path.relative_to(ROOT).as_posix(), path.read_text())
    ]
    assert not faults, "\n".join(faults)


def test_an_anonymous_tuple_is_found_and_a_sequence_or_a_result_is_none() -> None:
    for taken in ("tuple[int, str]", "tuple[int, str] | None", "'tuple[int, str]'"):
        assert len(tuple_faults("node/a.py", f"def f(*, a: {taken}): ...")) == 1
        assert len(tuple_faults("node/a.py", f"async def f(a: {taken}, /): ...")) == 1
    for allowed in ("tuple[int, ...]", "list[tuple[int, int]]", "Span", "int"):
        assert tuple_faults("node/a.py", f"def f(a: {allowed}) -> tuple[int, int]: ...") == []


FACADES = {"Client", "Consumer", "Producer"}
"""`keelog.aio` names its own as those that they wrap."""


def test_a_class_name_means_one_thing_in_the_whole_product() -> None:
    where: dict[str, set[str]] = {}
    for top in (*PRODUCT, "scripts"):
        for path in sorted((ROOT / top).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ClassDef):
                    where.setdefault(node.name, set()).add(str(path.relative_to(ROOT)))
    same = {name: places for name, places in where.items() if len(places) > 1}
    assert same.keys() <= FACADES, same
