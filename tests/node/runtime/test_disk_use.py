"""How full a disk counts as, and what the settings do then."""

from pathlib import Path

import pytest

from node.runtime.settings import Settings
from node.runtime.shortage import DiskSpace, DiskUse, disk_space, refusal_at, shortage_at, use_of


@pytest.mark.parametrize(
    ("space", "ratio", "percent"),
    [
        (DiskSpace(100, 50, 25), 2 / 3, 67),  # a quarter is kept for root
        (DiskSpace(100, 50, 50), 0.5, 50),
        (DiskSpace(100, 0, 0), 1.0, 100),
    ],
)
def test_what_is_kept_for_root_is_neither_used_nor_free(
    space: DiskSpace, ratio: float, percent: int
) -> None:
    assert space.used_ratio == pytest.approx(ratio)
    assert space.used_percent == percent


def test_a_store_without_queues_yet_has_one_disk(tmp_path: Path) -> None:
    (tmp_path / "commitlog").mkdir()
    use = use_of(tmp_path)
    assert use.log_percent == use.queue_percent
    assert abs(use.log_percent - disk_space(tmp_path).used_percent) <= 1


@pytest.mark.parametrize(
    ("percent", "forcibly", "what"),
    [
        (85, True, ""),
        (86, True, "above disk_space_clean_forcibly_ratio, 85 %: segments are deleted before"),
        (90, False, ""),
        (91, False, "above disk_space_warning_level_ratio, 90 %: no appends"),
        (91, True, "above disk_space_warning_level_ratio, 90 %: no appends"),
    ],
)
def test_a_full_disk_costs_what_the_settings_say(percent: int, forcibly: bool, what: str) -> None:
    settings = Settings(clean_file_forcibly_enable=forcibly)
    for use in (DiskUse(percent, 0), DiskUse(0, percent)):
        found = shortage_at(use, settings)
        assert what in found
        assert bool(found) == bool(what)
        assert bool(refusal_at(use, settings)) == (percent > 90)
