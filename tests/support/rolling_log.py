"""A log that is appended to beyond the end of a segment, closed and read back."""

from pathlib import Path
from typing import Any

from node.writer.log.commit_log import CommitLog


def claim(ahead: Any, stop: int) -> None:
    """As an append that ends at `stop`."""
    ahead.claimed = stop
    if stop >= ahead.due:
        ahead.claim()


def check_that_it_rolls(root: Path, segment_bytes: int, ahead: Any, pieces_a_segment: int) -> None:
    """Appends pieces that fill two segments and begin the third; each must be where it was put."""
    (root / "commitlog").mkdir()
    (root / "keelog" / "run").mkdir(parents=True)
    log = CommitLog(root, segment_bytes, 0, None, ahead)
    log.open_tail()
    size = segment_bytes // pieces_a_segment - 16
    pieces = [bytes([number]) * size for number in range(1, 2 * pieces_a_segment + 2)]
    starts = []
    for piece in pieces:
        log.make_room(len(piece))
        starts.append(log.append(piece))
    log.close(unlink_next=True)
    files = sorted((root / "commitlog").iterdir())
    assert [int(path.name) for path in files] == [0, segment_bytes, 2 * segment_bytes]
    data = b"".join(path.read_bytes() for path in files)
    for start, piece in zip(starts, pieces, strict=True):
        assert data[start : start + size] == piece
