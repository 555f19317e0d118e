"""A file system in a file whose power can be cut: what was not synced is gone, as on a real one.

The cut is the shutdown call of ext4 and XFS: from that moment nothing more reaches the device, its
journal included. A new mount then plays through what the journal holds. Needs root.
"""

import fcntl
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_GOING_DOWN = 0x8004587D
"""_IOR('X', 125, u32): EXT4_IOC_SHUTDOWN and XFS_IOC_GOINGDOWN."""
_NO_LOG_FLUSH = struct.pack("I", 2)
_MAKE = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-m", "0", "-E", "lazy_itable_init=0,lazy_journal_init=0"],
    "xfs": ["mkfs.xfs", "-q", "-f"],
}
IMAGE_BYTES = 512 << 20
_UNMOUNT_S = 20.0


def why_not(kind: str = "ext4") -> str:
    """Why the power cannot be cut here; empty when it can."""
    if os.geteuid() != 0:
        return "only root mounts file systems"
    if shutil.which(_MAKE[kind][0]) is None:
        return f"there is no {_MAKE[kind][0]}"
    if not Path("/dev/loop-control").exists():
        return "there are no loop devices"
    return ""


class PowerDisk:
    """A mounted image. `place` is where it is seen."""

    def __init__(self, folder: Path, device: str, kind: str) -> None:
        self.place = (folder / "disk").resolve()
        self._device = device
        self._kind = kind

    def mount(self) -> None:
        """Power is there; the journal is played through. Raises CalledProcessError."""
        self.place.mkdir(exist_ok=True)
        run(["mount", "-t", self._kind, "-o", "noatime", self._device, str(self.place)])

    def cut(self) -> int:
        """The power is lost. Answers a moment of the monotonic clock, in ns, just before."""
        descriptor = os.open(self.place, os.O_RDONLY | os.O_CLOEXEC)
        try:
            at_ns = time.monotonic_ns()
            fcntl.ioctl(descriptor, _GOING_DOWN, _NO_LOG_FLUSH)
        finally:
            os.close(descriptor)
        return at_ns

    def unmount(self) -> None:
        """Once nobody holds a file any more. Raises CalledProcessError after a while."""
        deadline = time.monotonic() + _UNMOUNT_S
        while True:
            try:
                run(["umount", str(self.place)])
            except subprocess.CalledProcessError:
                if time.monotonic() >= deadline:
                    raise
                time.sleep(0.05)
            else:
                return


@contextmanager
def power_disk(folder: Path, kind: str = "ext4") -> Iterator[PowerDisk]:
    """A new, mounted file system in `folder`; image, mount and loop device go behind it."""
    image = folder / "disk.img"
    with image.open("wb") as file:
        file.truncate(IMAGE_BYTES)
    run([*_MAKE[kind], str(image)])
    device = run(["losetup", "-f", "--show", str(image)])
    try:
        disk = PowerDisk(folder, device, kind)
        disk.mount()
        try:
            yield disk
        finally:
            if disk.place.is_mount():
                disk.unmount()
    finally:
        run(["losetup", "-d", device])
        image.unlink()


def run(command: list[str]) -> str:
    """What it prints. Raises CalledProcessError."""
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return done.stdout.strip()
