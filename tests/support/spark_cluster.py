"""A Spark standalone cluster of real processes: a master, workers, and what drivers are told.

Executors and drivers run in a Python that has what Keelog needs and not Keelog itself: the package
reaches them as a file, by `--py-files`, or not at all.
"""

import json
import os
import re
import signal
import subprocess
import sys
import sysconfig
import time
import urllib.request
import venv
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil
import pyspark

from keelog.pipeline.session import find_java

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = Path(pyspark.__file__).parent
START_S_MAX = 180.0
"""For a JVM to start, on a machine that is busy."""
_MASTER = "org.apache.spark.deploy.master.Master"
_WORKER = "org.apache.spark.deploy.worker.Worker"
_MASTER_URL = re.compile(r"Starting Spark master at (spark://\S+)")
_WEB_URL = re.compile(r"MasterWebUI .*started at (http://\S+)")
Answer = TypeVar("Answer")


def wait_for(what: str, look: Callable[[], Answer | None], seconds: float = START_S_MAX) -> Answer:
    """What `look` answers once that is something; fails when it takes longer than `seconds`."""
    deadline = time.monotonic() + seconds
    while True:
        found = look()
        if found:
            return found
        assert time.monotonic() < deadline, f"{what}: not within {seconds:.0f} s"
        time.sleep(0.02)


def bare_python(folder: Path) -> Path:
    """A Python with the packages of this one, but not Keelog, which is installed as a link there.

    Its `.pth` names our packages' folder; the `.pth` files within that, by which the checkout is
    found, are read for no other than the environment's own folder.
    """
    venv.create(folder, with_pip=False)
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    packages = folder / "lib" / version / "site-packages"
    (packages / "packages.pth").write_text(sysconfig.get_path("purelib") + "\n")
    python = folder / "bin" / "python"
    finds = (
        "import importlib.util as u; print([u.find_spec(n) is None for n in ('numpy', 'keelog')])"
    )
    done = subprocess.run(
        [python, "-c", finds], cwd=folder, capture_output=True, text=True, env=bare_environment(),
        check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "[False, True]", "numpy must be there, and Keelog must not"
    return python


def packed_package(folder: Path) -> Path:
    """The project as one file for `--py-files`: its wheel under a name that Spark takes."""
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)],
        cwd=ROOT, check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = folder.glob("*.whl")
    return wheel.rename(folder / "keelog.zip")


class Cluster:
    """A running master and its workers, each with one core."""

    def __init__(self, folder: Path, workers: int, worker_memory: str) -> None:
        self.folder = folder
        self.python = bare_python(folder / "python")
        self.package = packed_package(folder)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._worker_memory = worker_memory
        self._worker_count = workers
        self.workers: list[psutil.Process] = []
        self.url = ""
        self._web = ""

    def start(self) -> None:
        """Returns when all workers are registered."""
        log = self.folder / "master.log"
        self._spawn(log, _MASTER, "--host", "127.0.0.1", "--port", "0", "--webui-port", "0")
        self.url = wait_for("the master", lambda: _MASTER_URL.search(log.read_text()))[1]
        self._web = wait_for("the master's page", lambda: _WEB_URL.search(log.read_text()))[1]
        for number in range(self._worker_count):
            self.add_worker(str(number))

    def add_worker(self, name: str) -> None:
        """One more; returns when the master knows it."""
        known = len(self._alive())
        started = self._spawn(
            self.folder / f"worker-{name}.log", _WORKER, self.url,
            "--host", "127.0.0.1", "--port", "0", "--webui-port", "0",
            "--cores", "1", "--memory", self._worker_memory,
            "--work-dir", str(self.folder / f"work-{name}"),
        )  # fmt: skip
        wait_for(f"worker {name}", lambda: len(self._alive()) > known)
        self.workers.append(psutil.Process(started.pid))

    def submit(
        self, program: Path, *arguments: str, conf: Sequence[str] = ()
    ) -> subprocess.Popen[bytes]:
        """`spark-submit --py-files keelog.zip PROGRAM …` as a process; its log is `driver.log`."""
        words: list[str] = []
        for pair in (
            "spark.executor.memory=512m",
            "spark.driver.memory=512m",
            "spark.driver.host=127.0.0.1",
            "spark.driver.bindAddress=127.0.0.1",
            "spark.ui.enabled=true",
            "spark.ui.port=0",
            "spark.port.maxRetries=64",
            *conf,
        ):
            words += ["--conf", pair]
        command = [
            str(SPARK_HOME / "bin" / "spark-submit"), "--master", self.url, "--py-files",
            str(self.package), *words, str(program), *arguments,
        ]  # fmt: skip
        with (self.folder / "driver.log").open("wb") as log:
            process = subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, env=self.environment(),
                cwd=self.folder, start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        return process

    def driver_log(self) -> str:
        """What the driver has printed so far."""
        return (self.folder / "driver.log").read_text(errors="replace")

    def finish(self, process: subprocess.Popen[bytes], seconds: float = 300) -> None:
        """Waits for a driver; fails with its log unless it ended with 0."""
        code = process.wait(seconds)
        assert code == 0, self.driver_log()[-6000:]

    def environment(self) -> dict[str, str]:
        """For every process of the cluster: nothing in it leads to the checkout."""
        return {
            **bare_environment(),
            "SPARK_HOME": str(SPARK_HOME),
            "JAVA_HOME": str(find_java(os.environ)),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_DAEMON_MEMORY": "256m",
            "SPARK_NO_DAEMONIZE": "1",
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
        }

    def executors(self) -> list[psutil.Process]:
        """The executors' JVMs, children of the workers."""
        found: list[psutil.Process] = []
        for worker in self.workers:
            for child in worker.children(recursive=True) if worker.is_running() else ():
                # Others of its children are Python processes that come and go.
                with suppress(psutil.NoSuchProcess, psutil.ZombieProcess):
                    if "CoarseGrainedExecutorBackend" in " ".join(child.cmdline()):
                        found.append(child)
        return found

    def kill_worker(self, worker: psutil.Process) -> None:
        """The worker's JVM, its executors and their Python processes, all by SIGKILL."""
        _kill([worker, *worker.children(recursive=True)])

    def stop(self) -> None:
        """Ends everything that was started, whatever state it is in."""
        family: list[psutil.Process] = []
        for process in self._processes:
            with suppress(psutil.NoSuchProcess):
                leader = psutil.Process(process.pid)
                family += [leader, *leader.children(recursive=True)]
        _kill(family)
        for process in self._processes:
            process.wait(30)

    def _alive(self) -> list[Any]:
        with urllib.request.urlopen(f"{self._web}/json/", timeout=30) as answer:
            state = json.load(answer)
        return [worker for worker in state["workers"] if worker["state"] == "ALIVE"]

    def _spawn(self, log: Path, *words: str) -> subprocess.Popen[bytes]:
        with log.open("wb") as file:
            process = subprocess.Popen(
                [str(SPARK_HOME / "bin" / "spark-class"), *words], stdout=file,
                stderr=subprocess.STDOUT, env=self.environment(), cwd=self.folder,
                start_new_session=True,
            )  # fmt: skip
        self._processes.append(process)
        return process


@contextmanager
def running_cluster(
    folder: Path, workers: int = 2, worker_memory: str = "900m"
) -> Iterator[Cluster]:
    """A cluster that ends with the block, however that ends."""
    cluster = Cluster(folder, workers, worker_memory)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()


def _kill(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(processes, timeout=30)


def bare_environment() -> dict[str, str]:
    """PATH and the like; nothing that makes Python find more than it does by itself."""
    kept = ("PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "XDG_CACHE_HOME")
    return {name: os.environ[name] for name in kept if name in os.environ}
