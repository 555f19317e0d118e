"""A small Debian in a folder, by debootstrap, and what runs in copies of it (systemd-nspawn)."""

import os
import shutil
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "deploy"
"""Kept between runs; `make clean` removes it."""
PACKAGES = ("python3", "python3-pip", "python3-venv", "sudo", "systemd", "systemd-sysv", "dbus")
NEEDED = ("debootstrap", "systemd-nspawn", "nsenter", "setpriv", "buildah")
_SUITE = "bookworm"
_COMMAND_S_MAX = 600
_CERTIFICATES = "/etc/ssl/certs/ca-certificates.crt"


def missing() -> str:
    """Why nothing of this can be run here; empty when it can."""
    if os.geteuid() != 0:
        return "only root may make containers"
    absent = [name for name in NEEDED if shutil.which(name) is None]
    if absent:
        packages = "apt-get install debootstrap systemd-container buildah"
        return f"not on the PATH: {', '.join(absent)} ({packages})"
    return ""


def base() -> Path:
    """The Debian that all copies are made of. Nobody may change it."""
    made = BUILD / "debian"
    if not made.is_dir():
        partial = BUILD / "debian.partial"
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir(parents=True)
        include = f"--include={','.join((*PACKAGES, 'ca-certificates'))}"
        run("debootstrap", "--variant=minbase", include, _SUITE, str(partial))
        partial.rename(made)
    return made


def copy(target: Path) -> Path:
    """A copy of the base, to be changed."""
    run("cp", "-a", "--reflink=auto", str(base()), str(target))
    return target


def in_folder(machine: Path, command: str, *options: str, folder: str = "/") -> str:
    """Runs a shell command in a Debian with this machine's network; what it printed."""
    pip = BUILD / "pip"
    pip.mkdir(parents=True, exist_ok=True)
    return run(
        *("systemd-nspawn", "--quiet", "--directory", str(machine), "--register=no"),
        *("--keep-unit", "--as-pid2", f"--chdir={folder}", f"--bind={pip}:/root/.cache/pip"),
        *(f"--bind-ro={_CERTIFICATES}", f"--setenv=PIP_CERT={_CERTIFICATES}"),
        *(*options, "sh", "-c", f"umask 0022; {command}"),
    )


def run(*words: str, **more: object) -> str:
    """Runs a command of this machine; what it printed. Fails the test with all it said."""
    done = subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
        timeout=_COMMAND_S_MAX, **more,  # type: ignore[call-overload]
    )  # fmt: skip
    assert done.returncode == 0, (
        f"{' '.join(words)}\nexit {done.returncode}\n{done.stdout}{done.stderr}"
    )
    return str(done.stdout)
