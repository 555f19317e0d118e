"""The comparison with RocketMQ, without RocketMQ: plan, results, table, page."""

import json
import os
from pathlib import Path

import psutil
import pytest

from scripts.command_line import Spread, number, percentile
from scripts.docs.pages import fill_part
from scripts.rivals import compare_rocketmq
from scripts.rivals.plan import (
    AUTO_BATCH,
    CRC_OFF,
    LOADS,
    OBJECTS,
    OURS,
    ROWS,
    THEIRS,
    chosen,
    groups,
    rounds_of,
    scaled,
    sides_of,
    warm_ups,
)
from scripts.rivals.proc import MIB, private_mib, pss_kib
from scripts.rivals.results import Turn, TurnResults, lines, main_table, ratios, report

ASKED = {"seconds": 5.0, "scale": 1.0}


def result_of(load: str, rounds: dict[str, list[float]], figure: str = "per_s") -> TurnResults:
    """Turns of one load: for each side its figure, round by round."""
    turns = [
        Turn(load, side, number, {figure: value})
        for side, values in rounds.items()
        for number, value in enumerate(values, 1)
    ]
    return TurnResults(ASKED, turns)


def line_of(results: TurnResults, load: str, figure: str = "per_s"):  # type: ignore[no-untyped-def]
    """The table's line for a figure of a load."""
    (line,) = [
        one for one in lines(results)
        if (one.row.load, one.row.figure, one.row.side) == (load, figure, OURS)
    ]  # fmt: skip
    return line


def test_a_ratio_is_of_the_same_round_and_not_of_two_medians() -> None:
    results = result_of(
        "send_batches", {OURS: [200.0, 900.0, 300.0], THEIRS: [100.0, 300.0, 200.0]}
    )
    ratio = line_of(results, "send_batches").ratio
    assert (ratio.low, ratio.middle, ratio.high) == (1.5, 2.0, 3.0)


def test_a_round_with_one_side_alone_gives_no_ratio() -> None:
    assert ratios({1: 2.0, 2: 8.0}, {2: 4.0, 3: 1.0}) == [2.0]
    line = line_of(result_of("send_batches", {OURS: [5.0]}), "send_batches")
    assert line.ratio is None


def test_the_middle_of_rounds_is_their_median_and_percentiles_are_of_sorted_values() -> None:
    assert Spread.of([3.0, 1.0, 8.0, 2.0]) == (1.0, 2.5, 8.0)
    assert Spread.of([]) is None
    assert [percentile(range(200), percent) for percent in (50, 99, 100)] == [100, 198, 199]
    assert percentile([], 50) == 0


def test_memory_is_the_greatest_of_all_loads_of_a_round() -> None:
    results = TurnResults(ASKED)
    for load, side, mib in [("a", OURS, 10.0), ("b", OURS, 30.0), ("a", THEIRS, 300.0)]:
        results.turns.append(Turn(load, side, 1, {"pss_mib": mib}))
    assert line_of(results, "*", "pss_mib").ratio.middle == 0.1


def test_the_second_column_is_the_ratio_with_the_checksum_off() -> None:
    rounds = {OURS: [200.0], THEIRS: [100.0], CRC_OFF: [250.0]}
    assert line_of(result_of("send_batches", rounds), "send_batches").crc_off == 2.5


def test_what_others_took_during_a_turn_is_said() -> None:
    results = TurnResults(ASKED, [Turn("find", OURS, 1, {"others_cpu_share": 0.004})])
    assert "while ours had its turn, all others together took 0.4% of a core" in report(results)


def test_message_objects_have_a_line_of_their_own() -> None:
    results = result_of("consume", {OURS: [400.0], THEIRS: [200.0], OBJECTS: [50.0]})
    found = {one.row.side: one.ratio.middle for one in lines(results) if one.ratio}
    assert found == {OURS: 2.0, OBJECTS: 0.25}


def test_the_table_names_what_was_measured() -> None:
    results = result_of("send_1", {OURS: [3000.0], THEIRS: [2000.0]})
    table = main_table(results)
    assert table.count("\n") == 1
    assert "1.50 / 1.50 / 1.50" in table
    assert report(results) == table
    assert main_table(results, markdown=True).splitlines()[1].startswith("| --- | ---:")


def test_numbers_are_short_and_keep_three_digits() -> None:
    shown = [
        number(1_234_567, "/s"),
        number(54_321, "/s"),
        number(3_456, "/s"),
        number(0.1234, "s"),
    ]
    assert shown == ["1.23 M", "54 k", "3,456", "0.123"]


def test_every_row_has_its_load_and_both_sides_run() -> None:
    by_name = {load.name: load for load in LOADS}
    for row in ROWS:
        if row.load != "*":
            assert {THEIRS, row.side} <= set(by_name[row.load].sides)


def test_rows_are_chosen_by_name_or_by_their_beginning() -> None:
    assert [load.name for load in chosen("find,send_1")] == ["send_1", "find"]
    assert {load.name for load in chosen("sync")} == {"sync_64", "sync_batches"}
    assert chosen("") == LOADS
    with pytest.raises(ValueError, match="no row is called 'sned'; there are send_batches"):
        chosen("sned")


def test_the_plan_holds_every_load_once() -> None:
    planned = [load.name for group in groups(LOADS).values() for load in group]
    assert sorted(planned) == sorted(load.name for load in LOADS)


def test_loads_with_another_broker_have_a_group_of_their_own() -> None:
    names = {load.name: name for name, group in groups(LOADS).items() for load in group}
    assert names["sync_64"] == "SYNC_FLUSH"
    assert names["send_64"] == "ASYNC_FLUSH"
    assert names["dispatch"] == names["alone"]


def test_a_side_that_runs_alone_takes_its_variants_along() -> None:
    (load,) = chosen("in_flight")
    assert sides_of(load) == list(load.sides)
    assert sides_of(load, OURS) == [OURS, CRC_OFF]
    assert sides_of(load, THEIRS) == [THEIRS, AUTO_BATCH]


def test_java_warms_up_for_longer_and_long_rounds_are_few() -> None:
    (drain,), (slow,) = chosen("consume_1k"), chosen("restart_8g")
    assert len(warm_ups(drain, THEIRS, 5)) > len(warm_ups(drain, OURS, 5))
    assert rounds_of(slow, 5) == 2
    assert (rounds_of(drain, 5), rounds_of(drain, 5, CRC_OFF), rounds_of(drain, 2, CRC_OFF)) == (
        5,
        3,
        2,
    )
    assert warm_ups(slow, THEIRS, 5) == []


def test_a_scaled_load_is_a_part_of_it() -> None:
    (load,) = chosen("restart_1g")
    assert scaled(load, 0.25).gib == 0.25


def test_an_interrupted_run_goes_on_behind_its_last_whole_turn(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    results = TurnResults.open(path, ASKED)
    results.add(Turn("find", OURS, 1, {"p50_us": 1.5}))
    results.add(Turn("find", THEIRS, 1, {"p50_us": 2.5}))
    path.write_text(path.read_text()[:-9])
    again = TurnResults.open(path, ASKED)
    assert again.has("find", OURS, 1)
    assert not again.has("find", THEIRS, 1)
    again.add(Turn("find", THEIRS, 1, {"p50_us": 3.0}))
    assert TurnResults.load(path).turns == again.turns


def test_turns_of_another_length_are_not_mixed(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    TurnResults.open(path, ASKED)
    with pytest.raises(ValueError, match=r"seconds 5.0, not 2.0"):
        TurnResults.open(path, {**ASKED, "seconds": 2.0})


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "turns.jsonl"
    path.write_text(json.dumps({"load": "x"}) + "\n")
    with pytest.raises(ValueError, match="what was asked for"):
        TurnResults.load(path)


def test_memory_leaves_out_what_is_mapped_of_the_store() -> None:
    kib = {"/data/store/a b/0": 1000, "/data/store-2/file": 7, "": 20, "[heap]": 5}
    smaps = "".join(
        f"7f1c2a000000-7f1c2a021000 rw-s 0000a000 08:01 {number} {path}\n"
        f"Size: 9000 kB\nRss: 8000 kB\nPss: {size} kB\nPss_Dirty: 900 kB\nVmFlags: rd wr\n"
        for number, (path, size) in enumerate(kib.items())
    )
    assert pss_kib(smaps.encode(), b"/data/store") == 32
    assert pss_kib(smaps.encode(), b"/data/store/") == 32


def test_memory_of_a_process_is_most_of_what_it_holds() -> None:
    found = private_mib([os.getpid(), 2**22 + 1], Path("/none"))
    assert 1 < found <= psutil.Process().memory_info().rss / MIB + 1


@pytest.mark.parametrize(("option", "code"), [([], 2), (["--skip-without-java"], 0)])
def test_without_java_it_says_so_in_three_lines(
    option: list[str],
    code: int,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("shutil.which", lambda _: None)
    assert compare_rocketmq.main(["--rows", "find", *option]) == code
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 3
    assert "not on the PATH: java, mvn" in said[0]


def test_a_saved_result_is_shown_again_and_fills_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved, page = tmp_path / "saved.jsonl", tmp_path / "page.md"
    saved.write_text(result_of("send_1", {OURS: [6000.0], THEIRS: [2000.0]}).lines())
    page.write_text("# Page\n\n<!-- generated: compare_rocketmq -->\nold\n<!-- end -->\n\nrest\n")
    assert compare_rocketmq.main(["--from", str(saved), "--markdown", str(page)]) == 0
    assert "3.00 / 3.00 / 3.00" in capsys.readouterr().out
    text = page.read_text()
    assert "old" not in text
    assert "| one by one, 1 caller, 128 B | send_1 | /s | 6,000" in text
    assert text.endswith("end -->\n\nrest\n")


def test_a_page_without_the_part_is_refused_and_left_alone(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Page\n")
    with pytest.raises(ValueError, match="has no part <!-- generated: compare_rocketmq -->"):
        fill_part(page, "compare_rocketmq", "text")
    assert page.read_text() == "# Page\n"
