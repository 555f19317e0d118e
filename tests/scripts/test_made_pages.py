"""The README's picture and figures, and the page of settings, are what their scripts make."""

import re
import shlex
from pathlib import Path

import pytest

from scripts.docs import readme_numbers, recording, settings_table
from scripts.docs.recording import Event, Piece, as_cast, draw, from_cast, pieces
from tests.cli.tree import leaves

README = Path(__file__).resolve().parents[2] / "README.md"


def test_the_settings_table_is_what_the_code_says() -> None:
    text = settings_table.PAGE.read_text(encoding="utf-8")
    assert text.count("<!-- generated: settings -->") == 1
    assert settings_table.render(text) == text, "stale: python -m scripts.docs.settings_table"


def test_the_figures_of_the_readme_are_those_of_the_performance_page() -> None:
    text = README.read_text(encoding="utf-8")
    assert text.count("<!-- generated: numbers -->") == 1
    assert readme_numbers.render(text) == text, "stale: python -m scripts.docs.readme_numbers"


def test_a_figure_is_the_median_of_its_rounds() -> None:
    rows = "".join(
        f"| {name} | k | u | 1 / {number} / 9 | 2 / 3 / 4 | 0.5 / 0.6 / 0.7 | must |\n"
        for number, name in enumerate(readme_numbers.ROWS)
    )
    source = f"<!-- compare_rocketmq: begin -->\n\nMachine; 5 rounds.\n\n{rows}"
    made = readme_numbers.table(source + "<!-- compare_rocketmq: end -->")
    assert made.startswith("Machine:\n")
    assert f"| {readme_numbers.ROWS[2]} | u | 2 | 3 | 0.6 |" in made
    with pytest.raises(KeyError, match="no table"):
        readme_numbers.table(rows)


def recorded() -> list[Event]:
    return from_cast(recording.CAST.read_text(encoding="utf-8"))


def test_the_picture_is_drawn_from_the_recording() -> None:
    drawn = recording.PICTURE.read_text(encoding="utf-8")
    assert draw(recorded()) == drawn, "stale: python -m scripts.docs.recording --render"
    assert f"]({recording.PICTURE.relative_to(README.parent)})" in README.read_text()


def test_the_recording_shows_the_commands_of_the_script_and_each_exists() -> None:
    typed = "".join(event.text for event in recorded()).split("\r\n")
    shown = [line[2:] for line in typed if line.startswith(recording.PROMPT)]
    assert shown == list(recording.COMMANDS)
    for command in shown:
        words = shlex.split(re.sub(r"^echo \w+ \| |&$", "", command))
        assert words[0] == "keelog"
        text = f"{' '.join(words[1:])} "
        path = max((path for path in leaves() if text.startswith(f"{path} ")), key=len)
        options = {name for param in leaves()[path].params for name in param.opts}
        assert {word for word in words if word.startswith("-")} <= options, command


def test_long_lines_are_wrapped_and_each_piece_has_its_time() -> None:
    wide = "x" * recording.COLUMNS
    events = [Event(0.5, "$ "), Event(1.0, f"\x1b[1m{wide}\x1b[0m\r\n"), Event(2.0, "end")]
    assert from_cast(as_cast(events)) == events
    assert pieces(events) == [
        Piece(0, 0, "$ ", 0.5),
        Piece(0, 2, wide[2:], 1.0),
        Piece(1, 0, "xx", 1.0),
        Piece(2, 0, "end", 2.0),
    ]
    assert "animation-delay:2.00s" in draw(events)


def test_the_picture_keeps_columns_without_counting_on_spaces() -> None:
    drawn = draw([Event(0.0, "a b   c")])
    assert re.findall(r">([^<>]+)</text>", drawn) == ["a b", "c"]
    first, second = (float(x) for x in re.findall(r' x="([\d.]+)"', drawn))
    assert second - first == pytest.approx(6 * recording._CHAR_PX, abs=0.2)
