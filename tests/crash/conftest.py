"""Fixtures of the crash tests."""

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def fast_folder(tmp_path: Path) -> Iterator[Path]:
    """In memory where there is such a place: a hundred thousand stores are opened in it."""
    if not (MEMORY.is_dir() and os.access(MEMORY, os.W_OK)):
        yield tmp_path
        return
    folder = Path(tempfile.mkdtemp(prefix="keelog-crash-", dir=MEMORY))
    yield folder
    shutil.rmtree(folder)
