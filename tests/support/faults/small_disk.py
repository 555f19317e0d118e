"""File systems of a few MiB, mounted for one test. They need root: tests are skipped without."""

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from node.runtime.disk import DISK_FULL
from node.runtime.shortage import used_percent

_MIB = 1024 * 1024


@contextmanager
def small_tmpfs(folder: Path, mib: int) -> Iterator[Path]:
    """A file system in memory."""
    place = _mount_point(folder)
    _mount(["mount", "-t", "tmpfs", "-o", f"size={mib}m", "tmpfs", str(place)])
    try:
        yield place
    finally:
        _unmount(place)


@contextmanager
def small_ext4(folder: Path, mib: int) -> Iterator[Path]:
    """An ext4 in a file; it becomes read-only at the first error, as most are set up."""
    place = _mount_point(folder)
    if shutil.which("mkfs.ext4") is None or not Path("/dev/loop-control").exists():
        pytest.skip("no mkfs.ext4 or no loop devices")
    image = folder / "disk.img"
    with image.open("wb") as file:
        file.truncate(mib * _MIB)
    _run(["mkfs.ext4", "-q", "-F", "-m", "0", str(image)])
    device = _run(["losetup", "-f", "--show", str(image)])
    try:
        _mount(["mount", "-o", "errors=remount-ro", device, str(place)])
        try:
            yield place
        finally:
            _unmount(place)
    finally:
        _run(["losetup", "-d", device])
        image.unlink()


def error_switch(place: Path) -> Path:
    """Writing to this file makes the ext4 at `place` believe that it has met an error."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        device, where, *_ = line.split()
        if where == str(place):
            return Path("/sys/fs/ext4") / Path(device).name / "trigger_fs_error"
    raise AssertionError(f"nothing is mounted at {place}")


def _mount_point(folder: Path) -> Path:
    if os.geteuid() != 0:
        pytest.skip("only root mounts file systems")
    place = (folder / "disk").resolve()
    place.mkdir()
    return place


def _mount(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        pytest.skip(f"{' '.join(command[:3])}: {done.stderr.strip()}")


def _unmount(place: Path) -> None:
    done = subprocess.run(["umount", str(place)], capture_output=True, check=False)
    if done.returncode != 0:
        _run(["umount", "-l", str(place)])


def _run(command: list[str]) -> str:
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def fill(place: Path) -> Path:
    """Takes all the room that is left, to the last byte; answers the file that holds it."""
    ballast = place / "ballast"
    descriptor = os.open(ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    try:
        for size in (_MIB, 4096, 1):
            with suppress(OSError):
                while True:
                    os.write(descriptor, bytes(size))
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in DISK_FULL:
            raise
    finally:
        os.close(descriptor)
    return ballast


def fill_to(place: Path, percent: int) -> Path:
    """Takes room until the disk is that full, as `df` says; answers the file that holds it."""
    ballast = place / "ballast"
    with ballast.open("ab") as file:
        while used_percent(place) < percent:
            file.write(bytes(_MIB // 16))
            file.flush()
    return ballast


def free_bytes(place: Path) -> int:
    """What is left."""
    space = os.statvfs(place)
    return space.f_bavail * space.f_frsize
