"""docs/attacks.md has every attack, and for each the tests that hold it."""

from tests.attacks import ATTACKS, PAGE, page_with, places, rows


def test_every_attack_is_there_once_and_in_order() -> None:
    assert list(rows(PAGE.read_text())) == list(ATTACKS)
    assert sum(line[:1].isdigit() for line in PAGE.read_text().split("\n")) == len(ATTACKS)


def test_every_attack_is_held_by_a_test() -> None:
    assert list(places()) == list(ATTACKS)


def test_the_page_names_the_tests_that_are_marked_and_no_others() -> None:
    text = PAGE.read_text()
    assert text == page_with(text, places()), "run: python -m tests.attacks"


def test_a_test_that_was_renamed_is_noticed() -> None:
    text = "1. **a**: b (`tests/test_a.py::test_one`)"
    assert page_with(text, {1: ["tests/test_a.py::test_two"]}) == text.replace("one", "two")
    assert page_with(text, {}) == "1. **a**: b ()"
