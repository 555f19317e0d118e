"""Containers of the deploy tests: systemd-nspawn, with a network of their own."""

import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

from tests.deploy.debian import run
from tests.support.node import wait_until

_BEGIN_S = 120.0
_NAMESPACES = ("-m", "-p", "-n", "-u", "-i", "-r", "-w")


class Machine:
    """A folder as a running container. `words`: its process 1, or none for its own systemd."""

    def __init__(self, folder: Path, log: Path, *options: str, words: tuple[str, ...] = ()) -> None:
        self.log = log
        command = ["systemd-nspawn", "--quiet", f"--directory={folder}", "--register=no"]
        command += ["--keep-unit", "--private-network", *options, *(words or ("--boot",))]
        with log.open("wb") as out:
            self._nspawn = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        wait_until(lambda: bool(self._inside()), "the container does not begin", _BEGIN_S)
        (self.init,) = self._inside()

    def _inside(self) -> list[psutil.Process]:
        """The children that are in a namespace of their own: one that makes it ends soon."""
        assert self._nspawn.poll() is None, self.log.read_text()
        found, own = [], Path("/proc/self/ns/pid").readlink()
        for one in psutil.Process(self._nspawn.pid).children():
            with suppress(OSError):
                if Path(f"/proc/{one.pid}/ns/pid").readlink() != own:
                    found.append(one)
        return found

    def __call__(self, command: str, *before: str, env: tuple[str, ...] = ()) -> str:
        """Runs a shell command in it as root; what it printed."""
        path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
        enter = (
            "nsenter",
            f"--target={self.init.pid}",
            *_NAMESPACES,
        )
        return run(*enter, "env", "-i", path, *env, *before, "sh", "-c", command)

    def stop(self) -> int:
        """SIGTERM to process 1; the exit code of the container."""
        self.init.send_signal(signal.SIGTERM)
        return self._nspawn.wait(120)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._nspawn.poll() is None:
            self.init.kill()
        self._nspawn.wait(60)
