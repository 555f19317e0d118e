"""What the scripts refuse before they do any work."""

from collections.abc import Callable
from pathlib import Path

import pytest

from scripts.bench import dispatch as bench_dispatch
from scripts.bench import flatness as bench_flatness
from scripts.rivals import compare_rocketmq

Main = Callable[[list[str]], int]


@pytest.mark.parametrize(
    ("main", "words", "says"),
    [
        (compare_rocketmq.main, ["--rounds", "0"], "'0' is no whole number above 0"),
        (compare_rocketmq.main, ["--seconds", "-1"], "'-1' is no number above 0"),
        (compare_rocketmq.main, ["--scale", "inf"], "'inf' is no number above 0"),
        (bench_flatness.main, ["--gib", "nan"], "'nan' is no number above 0"),
        (bench_flatness.main, ["--queues", "many"], "'many' is no whole number above 0"),
        (bench_dispatch.main, ["--records", "0"], "'0' is no whole number above 0"),
        (bench_dispatch.main, ["/none"], "there is no folder /none"),
        (bench_flatness.main, ["--from", "/none.json"], "there is no file /none.json"),
        (bench_flatness.main, ["--json", "/none/a.json"], "there is no folder /none"),
        (bench_flatness.main, ["--json", "/"], "/ is a folder"),
        (compare_rocketmq.main, ["--dir", "/dev/null/x"], "cannot make /dev/null/x: Not a dir"),
    ],
)
def test_what_makes_no_sense_is_told_before_any_work(
    main: Main, words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == 2
    assert says in capsys.readouterr().err


@pytest.mark.parametrize("main", [compare_rocketmq.main, bench_flatness.main])
@pytest.mark.parametrize("text", ["", "{", "[1]\n", '{"asked": {}}\n{"no": "turn"}\n'])
def test_a_file_that_no_script_wrote_is_an_error_that_names_it(
    main: Main, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "saved.json"
    file.write_text(text)
    assert main(["--from", str(file)]) == 2
    assert f"error: {file} is no result of" in capsys.readouterr().err


def test_the_comparison_makes_the_folder_of_its_stores(tmp_path: Path) -> None:
    folder = tmp_path / "not" / "there"
    assert compare_rocketmq.main(["--plan", "--dir", str(folder)]) == 0
    assert folder.is_dir()
