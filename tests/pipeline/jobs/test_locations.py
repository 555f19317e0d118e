"""Whether a job can write where it is told to, before it begins."""

from pathlib import Path

import pytest

from keelog.pipeline.stores.access import check_can_write


def test_a_file_that_is_there_is_written_to_where_its_folder_takes_no_new_ones(
    tmp_path: Path,
) -> None:
    """As `/dev/stdout`, which is one of these."""
    with (tmp_path / "report").open("w") as file:
        check_can_write(Path(f"/proc/self/fd/{file.fileno()}"))


def test_a_file_in_a_folder_that_is_not_there_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere"):
        check_can_write(tmp_path / "nowhere" / "report")
    with pytest.raises(IsADirectoryError):
        check_can_write(tmp_path)
    assert not list(tmp_path.iterdir())
