"""RocketMQ 5.5.0 as subprocesses: name server, broker, and one warm Java program that drives them.

The folder java/ holds that program; its README.md lists what it replies. Maven brings RocketMQ.
"""

import json
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Self

from keelog.bench.job import wake_up_in_time
from keelog.pipeline.session import java_version
from node.supervisor.bind import free_ports
from scripts.rivals.proc import die_with_parent

JAVA = Path(__file__).parent / "java"
VERSION = "5.5.0"
BUILD_S = 600
START_S = 120
STOP_S = 120
JAVA_VERSION_MIN = 17
HEAP = ("-Xms3g", "-Xmx3g", "-XX:+UseG1GC", "-XX:MaxDirectMemorySize=15g")
"""The broker's, as in the figures that the goals were taken from; without AlwaysPreTouch.

The direct memory is that of RocketMQ's own runbroker.sh; the transient store pool needs it.
"""
SMALL_HEAP = (
    "-Xms512m", "-Xmx512m", "-XX:MaxDirectMemorySize=512m",
    # As ANY_DISK of nodes: a broker refuses sends while the machine's disk is 90 % full.
    "-Drocketmq.broker.diskSpaceWarningLevelRatio=1.0",
    "-Drocketmq.broker.diskSpaceCleanForciblyRatio=1.0",
)  # fmt: skip
"""Of brokers whose speed does not count, or beside others."""
CLIENT_HEAP = ("-Xms1g", "-Xmx2g")
_OPENS = (
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
    "--add-opens=java.base/java.lang=ALL-UNNAMED",
    "--add-opens=java.base/java.util=ALL-UNNAMED",
    "--add-opens=java.base/jdk.internal.misc=ALL-UNNAMED",
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-exports=java.base/sun.nio.ch=ALL-UNNAMED",
)
PULL_BYTES = 4 << 20
BROKER = {
    "brokerClusterName": "rival",
    "brokerName": "rival",
    "brokerId": 0,
    "brokerIP1": "127.0.0.1",
    "autoCreateTopicEnable": "true",
    # Only a machine that others use as well makes sends wait for so long; 200 by default.
    "waitTimeMillsInSendQueue": 2000,
    # Without these four a pull brings 32 messages however many it asks for.
    "maxTransferCountOnMessageInMemory": 1024,
    "maxTransferCountOnMessageInDisk": 1024,
    "maxTransferBytesOnMessageInMemory": PULL_BYTES,
    "maxTransferBytesOnMessageInDisk": PULL_BYTES,
}
Answer = dict[str, Any]


class RivalMissing(Exception):
    """Java or Maven is not here, too old, or could not build."""


class RivalFailed(Exception):
    """A process of RocketMQ did not start, or said that something failed."""


def missing() -> str:
    """Why RocketMQ cannot run here; empty when it can."""
    absent = [name for name in ("java", "mvn") if shutil.which(name) is None]
    if absent:
        return f"not on the PATH: {', '.join(absent)}"
    version = _java_version()
    if version < JAVA_VERSION_MIN:
        return f"java is version {version}, older than {JAVA_VERSION_MIN}"
    return ""


@cache
def _java_version() -> int:
    return java_version(Path("java")) or 0


def class_path(project: Path = JAVA) -> str:
    """Builds a Maven project when its sources are newer; returns what `java -cp` needs."""
    why = missing()
    if why:
        raise RivalMissing(why)
    built = project / "target" / "cp.txt"
    sources = [project / "pom.xml", *(project / "src").rglob("*.*")]
    if not built.exists() or built.stat().st_mtime < max(s.stat().st_mtime for s in sources):
        built.unlink(missing_ok=True)
        command = ["mvn", "-q", "-B", "-f", str(project / "pom.xml"), "package"]
        command += ["dependency:build-classpath", "-Dmdep.outputFile=target/cp.txt"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
        if done.returncode or not built.exists():
            raise RivalMissing(
                f"Maven could not build {project}: {(done.stdout + done.stderr)[-800:]}"
            )
    return f"{project / 'target' / 'classes'}:{built.read_text().strip()}"


def _begin_client() -> None:
    """For `preexec_fn`: it sends when a message is due as exactly as our own load processes do."""
    die_with_parent()
    wake_up_in_time()


class Jvm:
    """One Java process. What it prints goes to `NAME.log` in its home. A context that kills it."""

    def __init__(
        self,
        name: str,
        home: Path,
        command: Sequence[str],
        *,
        talks: bool,
        folder: Path | None = None,
    ) -> None:
        """`folder` is where it runs: some tools write files there."""
        home.mkdir(parents=True, exist_ok=True)
        self.name = name
        self._log = home / f"{name}.log"
        options = (f"-Duser.home={home}", f"-Djava.io.tmpdir={home}", "-Dfile.encoding=UTF-8")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                ["java", *options, *_OPENS, *command],
                stdin=subprocess.PIPE if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE if talks else log,
                stderr=log,
                env={**os.environ, "ROCKETMQ_HOME": str(home)},
                cwd=folder,
                preexec_fn=_begin_client if talks else die_with_parent,
                # Ctrl-C is ours to handle: the order of the end is not left to the terminal.
                start_new_session=True,
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def said(self) -> str:
        """The end of its log."""
        return self._log.read_text(errors="replace")[-1500:]

    def kill(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with suppress(BrokenPipeError):
                    pipe.close()
        self._process.kill()
        self._process.wait(START_S)

    def stop(self, timeout_s: float) -> int:
        """SIGTERM, as an operator stops it; returns the exit code."""
        self._process.terminate()
        return self._process.wait(timeout_s)

    def wait(self, timeout_s: float) -> None:
        """Waits until it ends by itself. Raises RivalFailed when it does not, or ends badly."""
        with suppress(subprocess.TimeoutExpired):
            if self._process.wait(timeout_s) == 0:
                return
        raise RivalFailed(f"{self.name} did not end well: {self.said()}")

    def tell(self, command: Mapping[str, object]) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(command).encode() + b"\n")
        self._process.stdin.flush()

    def hear(self) -> Answer:
        """The next answer. Raises RivalFailed when it is an error, or the process has ended."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RivalFailed(f"{self.name} has ended: {self.said()}")
        answer: Answer = json.loads(line)
        if "error" in answer:
            raise RivalFailed(f"{self.name}: {answer['error']}")
        return answer

    def ask(self, do: str, **arguments: object) -> Answer:
        self.tell({"do": do, **arguments})
        return self.hear()


class Program(Jvm):
    """The warm Java program of java/."""

    def __init__(
        self,
        classes: str,
        home: Path,
        name_server: str,
        heap: Sequence[str] = CLIENT_HEAP,
        options: Sequence[str] = (),
    ) -> None:
        """`options`: of its JVM, as `-Dtls.enable=true`."""
        command = [*heap, *options, "-cp", classes, "Rival", name_server]
        super().__init__("client", home, command, talks=True)
        self.hear()


@dataclass(frozen=True, slots=True)
class Addresses:
    """The addresses of name server and broker."""

    name_server: str
    broker: str

    @classmethod
    def free(cls) -> "Addresses":
        """The broker takes two ports below its own as well, and one for replication above it."""
        first = free_ports(5)
        return cls(f"127.0.0.1:{first}", f"127.0.0.1:{first + 3}")


def start_name_server(
    classes: str, home: Path, address: str, settings: Mapping[str, object] | None = None
) -> Jvm:
    """One name server, which stays while brokers come and go."""
    home.mkdir(parents=True, exist_ok=True)
    config = home / "namesrv.conf"
    said = {"listenPort": address.partition(":")[2], **(settings or {})}
    config.write_text("".join(f"{name}={value}\n" for name, value in said.items()))
    main = "org.apache.rocketmq.namesrv.NamesrvStartup"
    command = ["-Xms256m", "-Xmx256m", "-cp", classes, main, "-c", str(config)]
    jvm = Jvm("namesrv", home, command, talks=False)
    await_port(jvm, address)
    return jvm


class RocketMQ:
    """One broker on the store `home/store`, with `settings` beside those of BROKER.

    As a context it is started, and removed at the end.
    """

    def __init__(
        self,
        classes: str,
        home: Path,
        addresses: Addresses,
        settings: Mapping[str, object],
        heap: Sequence[str] = HEAP,
    ) -> None:
        self.addresses = addresses
        self.store = home / "store"
        self._home = home
        self._classes = classes
        self._heap = heap
        self._settings = dict(settings)
        self.jvm: Jvm | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def begin(self) -> None:
        """Starts it and does not wait."""
        port = int(self.addresses.broker.partition(":")[2])
        self._home.mkdir(parents=True, exist_ok=True)
        settings = {
            **BROKER,
            "listenPort": port,
            "haListenPort": port + 1,
            "namesrvAddr": self.addresses.name_server,
            "storePathRootDir": self.store,
            "storePathCommitLog": self.store / "commitlog",
            **self._settings,
        }
        config = self._home / "broker.conf"
        config.write_text("".join(f"{name}={value}\n" for name, value in settings.items()))
        main = "org.apache.rocketmq.broker.BrokerStartup"
        command = [*self._heap, "-cp", self._classes, main, "-c", str(config)]
        self.jvm = Jvm("broker", self._home, command, talks=False)

    def start(self) -> None:
        """Starts it and waits until it listens."""
        self.begin()
        assert self.jvm is not None
        await_port(self.jvm, self.addresses.broker)

    @property
    def pid(self) -> int:
        assert self.jvm is not None, "not started"
        return self.jvm.pid

    def stop(self) -> None:
        """Ends it in order: it saves what it has in memory."""
        if self.jvm is not None:
            self.jvm.stop(STOP_S)
            self.jvm = None

    def kill(self) -> None:
        if self.jvm is not None:
            self.jvm.kill()
            self.jvm = None

    def remove(self) -> None:
        """Kills it and deletes its store."""
        self.kill()
        shutil.rmtree(self._home, ignore_errors=True)


def await_port(jvm: Jvm, address: str) -> None:
    """Waits until somebody listens there. Raises RivalFailed when the process ends before."""
    host, _, port = address.partition(":")
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and jvm.alive():
        with suppress(OSError), socket.create_connection((host, int(port)), timeout=1.0):
            return
        time.sleep(0.02)
    said = jvm.said()
    jvm.kill()
    raise RivalFailed(f"{jvm.name} did not listen at {address}: {said}")
