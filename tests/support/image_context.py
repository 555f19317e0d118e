"""What the build of the image gets of the tree: all that .dockerignore lets through."""

import shutil
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_ANYWHERE = "**/"


def copy_of_context(target: Path) -> Path:
    """Copies it to `target`, and returns that."""
    patterns = (ROOT / ".dockerignore").read_text().split()
    anywhere = [one.removeprefix(_ANYWHERE) for one in patterns if one.startswith(_ANYWHERE)]
    at_top = [one for one in patterns if not one.startswith(_ANYWHERE)]
    # Docker has more forms of lines; this file uses two.
    assert not any(mark in one for one in (*anywhere, *at_top) for mark in "/!")

    def left_out(folder: str, names: list[str]) -> set[str]:
        wanted = [*anywhere, *at_top] if Path(folder) == ROOT else anywhere
        return {name for name in names for one in wanted if fnmatchcase(name, one)}

    shutil.copytree(ROOT, target, ignore=left_out, symlinks=True)
    return target
