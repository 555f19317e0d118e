# Plain calls on plain strings: this runs for every image.
# ruff: noqa: PTH102, PTH105, PTH108
"""A folder on which one image after another is laid out; only what differs is written."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.crash.sim_disk import Tree


class Slate:
    """Also stands in for `os` in the storage seam, to know what a recovery changed."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._start = f"{root}/"
        self._known: dict[str, bytes | None] = {}
        self._touched: set[str] = set()
        root.mkdir(parents=True, exist_ok=True)

    def lay_out(self, tree: Tree) -> None:
        """The folder then holds exactly these files and folders."""
        found = dict(self._standing("", str(self.root)))
        for path in sorted(found, reverse=True):
            if path not in tree or found[path] != (tree[path] is None):
                (os.rmdir if found[path] else os.unlink)(self._start + path)
                del found[path]
        for path, content in sorted(tree.items()):
            is_known = path in found and path not in self._touched
            if not is_known or self._known.get(path, ...) != content:
                self._write(self._start + path, content)
        self._known, self._touched = dict(tree), set()

    def _standing(self, prefix: str, folder: str) -> list[tuple[str, bool]]:
        found = []
        with os.scandir(folder) as entries:
            for entry in entries:
                is_folder = entry.is_dir()
                found.append((prefix + entry.name, is_folder))
                if is_folder:
                    found += self._standing(f"{prefix}{entry.name}/", entry.path)
        return found

    def _write(self, path: str, content: bytes | None) -> None:
        if content is None:
            with suppress(FileExistsError):
                os.mkdir(path)
            return
        # Another file each time: a second name of the old one keeps its bytes.
        with suppress(FileNotFoundError):
            os.unlink(path)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            os.pwrite(descriptor, content, 0)
        finally:
            os.close(descriptor)

    # -- in the place of `os` -----------------------------------------------------------------

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def _touch(self, path: str | Path) -> None:
        self._touched.add(str(path).removeprefix(self._start))

    def open(self, path: Path, flags: int, mode: int = 0o777) -> int:
        """Who opens to write is taken to have written."""
        if flags & os.O_ACCMODE != os.O_RDONLY:
            self._touch(path)
        return os.open(path, flags, mode)

    def fdatasync(self, _descriptor: int) -> None:
        """Nothing to do: nobody cuts the power here."""

    fsync = fdatasync

    def replace(self, old: Path, new: Path) -> None:
        """Notes both names."""
        self._touch(old)
        self._touch(new)
        os.replace(old, new)

    def link(self, old: Path, new: Path) -> None:
        """Notes the new name."""
        self._touch(new)
        os.link(old, new)
