"""What counts as a hop of a message."""

from scripts.trace_hops import ROOT, hop_of, look, usual


def test_what_runs_inside_a_function_is_a_part_of_it_and_what_is_not_ours_is_none() -> None:
    file = str(ROOT / "keelog" / "text.py")
    for inside in ("Table.row", "Table.row.<locals>.<lambda>", "Table.row.<locals>.<listcomp>"):
        assert hop_of(file, inside) == ("keelog/text.py", "Table.row")
    assert hop_of(file, "<module>") == ("keelog/text.py", "module")
    assert hop_of("<string>", "values") is None
    assert hop_of(str(ROOT / ".venv" / "lib" / "zmq.py"), "poll") is None


def test_a_hop_counts_that_most_looks_have() -> None:
    a, b = ("one.py", "a"), ("two.py", "b")
    assert usual([{a, b}, {a}, {a}]) == {a}


def test_a_look_sees_the_functions_that_its_thread_calls() -> None:
    def called() -> int:
        return 1

    hops, (begin, end) = look(called)
    name = "test_a_look_sees_the_functions_that_its_thread_calls.<locals>.called"
    assert hops == {("tests/scripts/test_trace_hops.py", name)}
    assert begin < end
