"""The golden stores: directories that RocketMQ wrote, and what RocketMQ says about them.

tests/golden/README.md tells what is in each store and what each fact means.
"""

import gzip
import json
import os
import tarfile
from collections.abc import Callable
from functools import cached_property
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests/golden"
ARCHIVES = {
    path.name.removesuffix(".tar.gz"): path
    for folder in (FOLDER, ROOT / "keelog/cli/demo_stores")
    for path in folder.glob("*.tar.gz")
}
"""The packed stores by name. Those that `keelog demo` sends are where a wheel has them."""

STORES: tuple[str, ...] = (
    "cq-missing",
    "crc32-property",
    "default-sizes",
    "mixed-kinds",
    "small-clean",
    "small-clean-533",
    "small-killed",
    "small-torn",
    "trimmed",
    "trimmed-cq-missing",
)

Row = dict[str, Any]
GetStore = Callable[[str], Path]  # the fixtures golden and golden_copy of tests/conftest.py


class Facts:
    """What RocketMQ reports about one store. Each file is read when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    @cached_property
    def state(self) -> Row:
        """Log range, queues, segment ends, checkpoint and the sizes the store was written with."""
        return self._object("state.json")

    @cached_property
    def files(self) -> list[Row]:
        """`path`, `size` and `sha256` of every file of the packed store."""
        return self._array("files.json")

    @cached_property
    def files_after(self) -> list[Row]:
        """The same after RocketMQ recovered the store and stopped cleanly."""
        return self._array("files-after.json")

    @cached_property
    def messages(self) -> list[Row]:
        """Every record, in log order."""
        return self._lines("messages.jsonl.gz")

    @cached_property
    def queue_units(self) -> list[Row]:
        """Every ConsumeQueue unit from each queue's minimum to its maximum."""
        return self._lines("cq.jsonl.gz")

    @cached_property
    def index_queries(self) -> list[Row]:
        """Look-ups by key with RocketMQ's answers, in its order."""
        return self._lines("index.jsonl.gz")

    @cached_property
    def index_headers(self) -> list[Row]:
        """The header of every index file after recovery and dispatch."""
        return self._lines("index-headers.jsonl")

    @cached_property
    def queries(self) -> list[Row]:
        """Pulls, look-ups by time and by physical offset, with RocketMQ's answers."""
        return self._lines("queries.jsonl.gz")

    def _text(self, name: str) -> str:
        data = (self._folder / name).read_bytes()
        return (gzip.decompress(data) if name.endswith(".gz") else data).decode()

    def _object(self, name: str) -> Row:
        value = json.loads(self._text(name))
        assert isinstance(value, dict), name
        return value

    def _array(self, name: str) -> list[Row]:
        value = json.loads(self._text(name))
        assert isinstance(value, list), name
        return value

    def _lines(self, name: str) -> list[Row]:
        # Not splitlines: it also splits at U+2028 and its like, which values may contain.
        return [json.loads(line) for line in self._text(name).split("\n") if line]


def facts(name: str) -> Facts:
    """The facts about the store `name`, one of STORES."""
    return Facts(FOLDER / _known(name))


def unpack(name: str, into: Path) -> Path:
    """Extract the store `name` below `into`, holes kept, and return its folder `into/name`.

    Its files were last written now: at four in the morning a node would delete older segments.
    """
    with tarfile.open(ARCHIVES[_known(name)]) as archive:
        if hasattr(tarfile, "data_filter"):
            archive.extractall(into, filter="data")
        else:  # Debian 12's Python 3.11.2 is older than the filters; the archives are our own.
            archive.extractall(into)
    for path in (into / name).rglob("*"):
        os.utime(path)
    return into / name


def _known(name: str) -> str:
    if name not in STORES:
        raise KeyError(f"no golden store {name!r}; there are: {', '.join(STORES)}")
    return name
