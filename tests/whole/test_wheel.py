"""What an installation gets: the kernel where there is a compiler, all the rest in any case."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import hatch_build
from keelog.cli.demo import SOURCES
from protocol.kernel import loader
from tests.support.golden import GetStore, facts
from tests.support.image_context import copy_of_context
from tests.support.node import wait_until
from tests.support.spark_cluster import bare_environment, bare_python

ROOT = Path(hatch_build.__file__).parent
BIND = "tcp://127.0.0.1:0"


def wheel(folder: Path, env: dict[str, str], tree: Path = ROOT) -> zipfile.ZipFile:
    """The wheel of a tree, as `pip` makes one."""
    build(tree, "wheel", folder, env)
    (found,) = folder.glob("*.whl")
    return zipfile.ZipFile(found)


def build(tree: Path, kind: str, folder: Path, env: dict[str, str]) -> None:
    """Builds a distribution of a tree: `wheel` or `sdist`."""
    command = [sys.executable, "-m", "hatchling", "build", "-t", kind, "-d", str(folder)]
    done = subprocess.run(
        command, cwd=tree, env={**os.environ, **env}, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[zipfile.ZipFile]:
    """The wheel of this tree without the kernel, built once."""
    with wheel(tmp_path_factory.mktemp("plain"), {loader.SWITCH: "off"}) as found:
        yield found


@pytest.mark.process
@pytest.mark.xdist_group("wheel")
@pytest.mark.parametrize("compiler", ["false", "/no/such/cc"])
def test_without_a_compiler_the_wheel_is_for_any_machine(
    tmp_path: Path, plain: zipfile.ZipFile, compiler: str
) -> None:
    with wheel(tmp_path, {"CC": compiler}) as found:
        assert sorted(found.namelist()) == sorted(plain.namelist())
        assert (plain.filename or "").endswith("-py3-none-any.whl")
        assert (found.filename or "").endswith("-py3-none-any.whl")
        assert f"keelog/protocol/kernel/{loader.FILE}" not in found.namelist()
        assert "keelog/protocol/kernel/loader.py" in found.namelist()
        # A user's checker takes all names of a package without it for Any.
        assert {"keelog/py.typed", "keelog/client/py.typed"} < {*found.namelist()}
        (points,) = (name for name in found.namelist() if name.endswith("/entry_points.txt"))
        assert b"[pytest11]" in found.read(points)


def image_context(folder: Path) -> Path:
    """What `docker build` sends of this tree: all that .dockerignore does not name."""
    return copy_of_context(folder / "context")


def source_distribution(folder: Path) -> Path:
    """What `pip` unpacks of a source distribution."""
    build(ROOT, "sdist", folder, {})
    (archive,) = folder.glob("*.tar.gz")
    (folder / "unpacked").mkdir()
    subprocess.run(["tar", "-xf", str(archive), "-C", str(folder / "unpacked")], check=True)
    (tree,) = (folder / "unpacked").iterdir()
    return tree


@pytest.mark.process
@pytest.mark.xdist_group("wheel")
@pytest.mark.parametrize("make", [image_context, source_distribution])
def test_what_others_build_from_makes_the_same_wheel(
    tmp_path: Path, plain: zipfile.ZipFile, make: Callable[[Path], Path]
) -> None:
    tree = make(tmp_path)
    assert make is source_distribution or not (tree / "tests").exists()
    with wheel(tmp_path / "theirs", {loader.SWITCH: "off"}, tree) as theirs:
        assert sorted(theirs.namelist()) == sorted(plain.namelist())
        for name in SOURCES:
            assert f"keelog/cli/demo_stores/{name}.tar.gz" in theirs.namelist()


def test_only_imports_of_inner_packages_are_rewritten() -> None:
    source = "from node.runtime import disk\nfrom nodes import x\nimport os\n# from node.x\n"
    assert hatch_build.nested(source).split("\n") == [
        "from keelog.node.runtime import disk", "from nodes import x", "import os", "# from node.x",
        "",
    ]  # fmt: skip
    inside = "def f():\n    from protocol.ids import (\n        Queue,\n    )"
    assert hatch_build.nested(inside) == inside.replace("protocol", "keelog.protocol")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of an environment that has the wheel and what it needs, and not the tree.

    The wheel is unpacked there, as an installer does it.
    """
    folder = tmp_path_factory.mktemp("installed")
    with wheel(folder, {}) as found:
        python = bare_python(folder / "env")
        (packages,) = (folder / "env" / "lib").glob("python*/site-packages")
        found.extractall(packages)
    # An old backport that somebody else has installed.
    (packages / "typing.py").write_text("raise ImportError('a module of Python 2')")
    return python


def run(python: Path, *words: str, stdin: str = "") -> str:
    # Another test of this process may have named the tree's Python to Spark.
    done = subprocess.run(
        [python, *words], cwd=python.parent, input=stdin, env=bare_environment(),
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.process
@pytest.mark.xdist_group("wheel")
def test_an_installation_has_two_names_and_serves_messages(installed: Path, tmp_path: Path) -> None:
    (packages,) = installed.parents[1].glob("lib/python*/site-packages")
    ours = {path.name for path in packages.iterdir() if path.suffix not in (".pth", ".dist-info")}
    assert ours - {"typing.py"} == {"keelog", "pyspark_keelog"}
    with (tmp_path / "log").open("w+") as log:
        serve = [str(installed), "-m", "keelog", "serve", str(tmp_path / "store"), "--bind", BIND]
        node = subprocess.Popen(serve, stderr=log, cwd=tmp_path, env=bare_environment())
        try:
            wait_until(lambda: "\nready tcp" in (tmp_path / "log").read_text(), "it is not ready")
            line = (tmp_path / "log").read_text().partition("\nready ")[2]
            place = ("--node", line.split()[0])
            sent = run(installed, "-m", "keelog", "produce", "orders", *place, stdin="one\ntwo\n")
            assert sent.count("PUT_OK") == 2
            words = ("consume", "orders", *place, "-o", "start", "-e", "-f", "%s\n")
            assert sorted(run(installed, "-m", "keelog", *words).split()) == ["one", "two"]
            modules = run(installed, "-c", "import keelog; print(keelog.connect.__module__)")
            assert modules == "keelog.client.client\n"
        finally:
            node.terminate()
            assert node.wait(30) == 0
    run(installed, "-m", "keelog", "store", "verify", str(tmp_path / "store"), "--deep")


@pytest.mark.process
@pytest.mark.xdist_group("wheel")
def test_the_demo_of_an_installation_brings_its_messages(installed: Path, tmp_path: Path) -> None:
    place = ("--directory", str(tmp_path), "--no-spark", "--json")
    told = json.loads(run(installed, "-m", "keelog", "demo", *place))
    assert told["sent"] > 0
    assert told["pulled_equal"] == told["sent"]


READ = """
import sys
from keelog.spark import local_session
print(local_session("wheel").read.format("keelog").load(sys.argv[1]).count())
"""


@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.spark_long
def test_an_installation_reads_a_store_with_spark(installed: Path, golden: GetStore) -> None:
    said = run(installed, "-c", READ, str(golden("small-clean")))
    assert int(said) == len(facts("small-clean").messages)


@pytest.mark.process
def test_with_a_compiler_the_wheel_holds_the_kernel_for_this_machine(tmp_path: Path) -> None:
    if hatch_build.compiler() is None:
        pytest.skip("no C compiler")
    before = Path(loader.path()).stat().st_mtime_ns if loader.kernel else None
    with wheel(tmp_path, {loader.SWITCH: "on"}) as found:
        assert "-py3-none-linux_" in (found.filename or "")
        library = Path(found.extract(f"keelog/protocol/kernel/{loader.FILE}", tmp_path))
    assert loader.Kernel(str(library)).columns > 0
    after = Path(loader.path()).stat().st_mtime_ns if loader.kernel else None
    assert after == before, "building a wheel changed the tree"
