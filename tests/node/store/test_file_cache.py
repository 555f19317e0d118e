"""Many small pieces of a file, read in one go: the same bytes, the same errors."""

import re
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

from node.store.file_cache import OpenFiles
from protocol.errors import StoreDamaged
from protocol.kernel import loader
from tests.support.kernel import using

needs_kernel = pytest.mark.skipif(
    loader.kernel is None, reason="this installation has no compiled kernel"
)
DATA = bytes(range(251)) * 400
PLACES = np.array([0, 7, 7, 5000, 5008, 90_000, 100_390])
COUNTS = np.array([7, 0, 100, 8, 3000, 9000, 10])


@needs_kernel
def test_pieces_of_a_file_are_what_single_reads_give(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    with closing(OpenFiles()) as files:
        file = files.get(path, len(DATA))
        found = file.read_pieces(PLACES, COUNTS).tobytes()
        pairs = zip(PLACES.tolist(), COUNTS.tolist(), strict=True)
        assert found == b"".join(file.read(*pair) for pair in pairs)


@needs_kernel
def test_pieces_of_a_file_that_shrank_are_damage_with_its_name(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(DATA)
    with closing(OpenFiles()) as files:
        file = files.get(path, len(DATA))
        path.write_bytes(DATA[:50_000])
        with pytest.raises(StoreDamaged, match=re.escape(str(path))):
            file.read_pieces(PLACES, COUNTS)


def test_only_with_the_kernel_are_pieces_joined() -> None:
    with using(None):
        assert not OpenFiles().joins_pieces
