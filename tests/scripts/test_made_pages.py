"""The generated parts of our pages, and the README's picture, are what their scripts make."""

import re
import shlex
from pathlib import Path

import pytest

from scripts.docs import pages as pages_module
from scripts.docs import recording
from scripts.docs.pages import PAGES, README_ROWS, ROOT, parts_of, readme_numbers, render
from scripts.docs.recording import Event, Piece, as_cast, draw, from_cast, pieces
from tests.cli.tree import leaves

README = ROOT / "README.md"


@pytest.mark.parametrize("page", PAGES)
def test_a_page_has_its_generated_parts_as_the_code_makes_them(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    assert render(page, text) == text, "stale: python -m scripts.docs.pages"
    assert text.count("<!-- generated: ") == len(parts_of(text)) == len(PAGES[page])


def test_a_stale_page_is_noticed_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n<!-- generated: unit -->\nold\n<!-- end -->\n\nby hand\n")
    monkeypatch.setattr(pages_module, "ROOT", tmp_path)
    monkeypatch.setattr(pages_module, "PAGES", {"page.md": {"unit": lambda: "new"}})
    monkeypatch.setattr("sys.argv", ["pages", "--check"])
    assert pages_module.main() == 1
    assert "page.md is stale" in capsys.readouterr().err
    assert "old" in page.read_text()
    monkeypatch.setattr("sys.argv", ["pages"])
    assert pages_module.main() == 0
    made = "<!-- generated: unit -->\n\nnew\n\n<!-- end -->"
    assert page.read_text() == f"# Title\n\n{made}\n\nby hand\n"
    monkeypatch.setattr("sys.argv", ["pages", "--check"])
    assert pages_module.main() == 0


def test_an_unknown_part_is_an_error() -> None:
    with pytest.raises(KeyError):
        render("docs/format.md", "<!-- generated: nonsense -->\n<!-- end -->")


def test_a_figure_is_the_median_of_its_rounds() -> None:
    rows = "".join(
        f"| {name} | k | u | 1 / {number} / 9 | 2 / 3 / 4 | 0.5 / 0.6 / 0.7 | must |\n"
        for number, name in enumerate(README_ROWS)
    )
    source = f"<!-- generated: compare_rocketmq -->\n\nMachine; 5 rounds.\n\n{rows}<!-- end -->"
    made = readme_numbers(source)
    assert made.startswith("Machine:\n")
    assert f"| {README_ROWS[2]} | u | 2 | 3 | 0.6 |" in made
    with pytest.raises(KeyError):
        readme_numbers(rows)


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
