"""RocketMQ's clients, each with the programs that use it: built once, outside of the tree.

A program is built again when its manifest, its lock file or its source has changed.
"""

import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

HERE = Path(__file__).parent
BUILD_S = 600
RUN_S = 300
_DIRECT = {"OMS_RMQ_DIRECT_NAME_SRV": "true"}
"""RocketMQ's OpenMessaging takes the address that it is given only then."""


class Program(NamedTuple):
    """Commands to which only arguments are added: name server and topic, for a member a group."""

    scenario: Sequence[str]
    member: Sequence[str] = ()
    watched: Sequence[str] = ()
    """A producer and a consumer that say what they are told, of Java alone."""


class Client(NamedTuple):
    """One client of RocketMQ: `build` makes its programs below a folder for builds."""

    source: str
    """The folder beside this module; it has `transcript.txt`, too."""
    needs: Sequence[str]
    build: Callable[[Path], Program]
    makes_topics: bool = True
    """Whether a send to a topic that does not exist makes it."""

    def missing(self) -> str:
        """Why it cannot run here; empty when it can."""
        absent = [name for name in self.needs if shutil.which(name) is None]
        return f"not on the PATH: {', '.join(absent)}" if absent else ""

    def transcript(self) -> str:
        """What its scenario prints at any broker."""
        return (HERE / self.source / "transcript.txt").read_text()


def run_scenario(
    scenario: Sequence[str],
    name_server: str,
    topic: str,
    home: Path,
    more: Mapping[str, str] = MappingProxyType({}),
) -> subprocess.CompletedProcess[str]:
    """Runs a scenario to its end. Clients leave their logs in `home`. `more`: of its environment;
    CREDENTIALS_FILE names a file with a user and a secret."""
    return subprocess.run(
        [*scenario, name_server, topic], cwd=home, capture_output=True, text=True, timeout=RUN_S,
        check=False, env={**os.environ, **_DIRECT, "HOME": str(home), **more},
    )  # fmt: skip


def _digest(source: Path, commands: Sequence[Sequence[str]]) -> str:
    found = hashlib.sha256(repr(commands).encode())
    for path in sorted(source.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(str(path.relative_to(source)).encode() + b"\0" + path.read_bytes())
    return found.hexdigest()


def _built(folder: Path, source: str, commands: Sequence[Sequence[str]]) -> Path:
    """Copies a source to `folder` and runs the commands there, unless that is done already."""
    mark, digest = folder / "built", _digest(HERE / source, commands)
    if mark.is_file() and mark.read_text() == digest:
        return folder
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(HERE / source, folder, ignore=shutil.ignore_patterns("__pycache__"))
    for command in commands:
        done = subprocess.run(
            command, cwd=folder, capture_output=True, text=True, timeout=BUILD_S, check=False
        )
        assert done.returncode == 0, f"{command}: {(done.stdout + done.stderr)[-2000:]}"
    mark.write_text(digest)
    return folder


def _maven(builds: Path, folder: str, source: str, *options: str) -> Sequence[str]:
    """The start of a command that runs a class of a Maven project."""
    goals = ("package", "dependency:build-classpath", "-Dmdep.outputFile=target/cp.txt")
    built = _built(builds / folder, source, (("mvn", "-q", "-B", *options, *goals),))
    libraries = (built / "target" / "cp.txt").read_text().strip()
    java = ("java", "-Xmx256m", "-Dfile.encoding=UTF-8", "-Duser.home=.")
    return (*java, "-cp", f"{built}/target/classes:{libraries}")


def _java(version: str) -> Callable[[Path], Program]:
    def build(builds: Path) -> Program:
        java = _maven(builds, f"java-{version}", "java", f"-Dclient.version={version}")
        return Program((*java, "Scenario"), (*java, "Member"), (*java, "Watched"))

    return build


def _spring(builds: Path) -> Program:
    return Program((*_maven(builds, "spring", "spring"), "scenario.SpringScenario"))


def _openmessaging(builds: Path) -> Program:
    return Program((*_maven(builds, "openmessaging", "openmessaging"), "OpenMessagingScenario"))


def _corners(builds: Path) -> Program:
    return Program((*_maven(builds, "corners", "corners"), "Corners"))


def _go(builds: Path) -> Program:
    folder = _built(builds / "go", "go", (("go", "build", "-o", "program", "."),))
    program = str(folder / "program")
    return Program((program, "scenario"), (program, "member"))


def go_by_tls(builds: Path) -> Program:
    """The client of tls.mod, newer than the last release, which has no TLS."""
    command = ("go", "build", "-tags", "tls", "-modfile", "tls.mod", "-o", "program", ".")
    folder = _built(builds / "go-tls", "go", (command,))
    return Program((str(folder / "program"), "scenario"))


def _nodejs(builds: Path) -> Program:
    install = ("npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts")
    folder = _built(builds / "nodejs", "nodejs", (install,))
    return Program(("node", str(folder / "scenario.js")))


def _python(builds: Path) -> Program:
    """The package needs an environment of its own: others install the same name."""
    pip = ("venv/bin/python", "-m", "pip", "install", "--quiet", "-r", "requirements.txt")
    folder = _built(builds / "python", "python", ((sys.executable, "-m", "venv", "venv"), pip))
    python = (str(folder / "venv" / "bin" / "python"),)
    return Program((*python, str(folder / "scenario.py")), (*python, str(folder / "member.py")))


CLIENTS: Mapping[str, Client] = {
    "java-5.5.0": Client("java", ("java", "mvn"), _java("5.5.0")),
    "java-4.9.8": Client("java", ("java", "mvn"), _java("4.9.8")),
    "spring-2.3.3": Client("spring", ("java", "mvn"), _spring),
    "openmessaging-5.5.0": Client("openmessaging", ("java", "mvn"), _openmessaging),
    "go-2.1.2": Client("go", ("go",), _go),
    "ali-ons-3.12.0": Client("nodejs", ("node", "npm"), _nodejs, makes_topics=False),
    "rocketmq-0.4.4": Client("python", (), _python),
    # The last: it has the broker make no more topics.
    "corners-5.5.0": Client("corners", ("java", "mvn"), _corners),
}
