"""`keelog bench`: the shapes of its results, limits, and what stops a run before it begins."""

import json
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from keelog.bench.results import Result
from keelog.cli.main import run
from tests.support.node import RunningNode
from tests.support.pages import agrees, steps

STREAM = {"summary", "steady", "seconds", "distribution"}
SUMMARY = {
    "seconds", "messages", "messages_per_s", "mb_per_s", "failures",
    "avg_ms", "p50_ms", "p90_ms", "p99_ms", "p999_ms", "max_ms",
}  # fmt: skip
RESULT = {
    "shape", "kind", "main", "summary", "steady", "workload", "machine", "streams", "processes",
    "looks", "cpu_s_per_million", "generator_cpu_s_per_million", "lag_at_end_bytes",
    "dispatched_after_s", "checks", "faults", "limits_broken",
}  # fmt: skip
SMALL = ("store.mapped_file_size_commit_log=16777216", "store.max_index_num=20000")


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with RunningNode(tmp_path_factory.mktemp("bench") / "store", SMALL, readers=1) as running:
        yield running


def bench(*words: str, code: int = 0) -> None:
    assert run(["bench", *words]) == code


def loaded(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(path.read_text())
    assert set(found) == RESULT
    for stream in found["streams"].values():
        assert set(stream) == STREAM
        assert set(stream["summary"]) == set(stream["steady"]) == SUMMARY
    again = json.loads(json.dumps(Result.of(found).as_dict()))
    assert again == found, "what is read is what was written"
    return found


@pytest.mark.process
@pytest.mark.xdist_group("bench")
def test_sends_are_counted_timed_and_written_in_every_form(
    node: RunningNode, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    json_file, csv_file, page = (tmp_path / name for name in ("a.json", "a.csv", "a.html"))
    words = ["send", "--node", node.endpoint, "--count", "300", "--producers", "4"]
    words += ["--warm-up", "0", "--body", "uniform:10-90", "--keys", "1"]
    files = ["--json", str(json_file), "--csv", str(csv_file), "--html", str(page)]
    bench(*words, *files, "--max-p99", "1us", "--min-rate", "1G", code=7)

    found = loaded(json_file)
    assert found["streams"]["send"]["summary"]["messages"] == 300
    assert found["steady"]["failures"] == {}
    assert found["steady"]["p50_ms"] <= found["steady"]["p99_ms"] <= found["steady"]["max_ms"]
    assert len(found["limits_broken"]) == 2
    assert {one["name"] for one in found["processes"]} >= {
        "send 0",
        "writer",
        "index",
        "supervisor",
    }
    assert csv_file.read_text().startswith("stream,at,messages,messages_per_s,mb_per_s,failures,")
    text = page.read_text()
    assert text.count("<svg") >= 4
    assert "http-equiv" not in text
    assert "<script" not in text
    talk = capsys.readouterr()
    assert "messages/s" in talk.out
    assert "cause: p99 is" in talk.err

    assert run(["bench", "compare", str(json_file), str(json_file), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert set(rows[0]) == {"figure", "before", "after", "ratio", "verdict"}
    assert {row["verdict"] for row in rows} == {"same"}


@pytest.mark.process
@pytest.mark.xdist_group("bench")
def test_stored_messages_are_read_once(node: RunningNode, tmp_path: Path) -> None:
    words = ["--node", node.endpoint, "--count", "1000", "--consumers", "2", "--warm-up", "0"]
    bench("consume", *words, "--json", str(tmp_path / "a.json"))
    found = loaded(tmp_path / "a.json")
    assert found["summary"]["messages"] == 1000
    assert found["summary"]["p50_ms"] is None


@pytest.mark.process
@pytest.mark.xdist_group("bench")
def test_every_message_that_is_sent_arrives_at_the_consumer(
    node: RunningNode, tmp_path: Path
) -> None:
    words = ["--node", node.endpoint, "--rate", "200", "--count", "100", "--warm-up", "0"]
    words += ["--callers", "tasks", "--processes", "2"]
    bench("e2e", *words, "--json", str(tmp_path / "a.json"))
    found = loaded(tmp_path / "a.json")
    assert found["main"] == "end_to_end"
    assert found["summary"]["messages"] == found["streams"]["send"]["summary"]["messages"] == 100
    assert found["faults"] == []


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.xdist_group("bench")
def test_a_mixed_load_checks_every_message(node: RunningNode, tmp_path: Path) -> None:
    words = ["--node", node.endpoint, "--rate", "200", "--duration", "1s", "--warm-up", "0"]
    bench("mixed", *words, "--kill-every", "400ms", "--json", str(tmp_path / "a.json"))
    found = loaded(tmp_path / "a.json")
    assert found["faults"] == []
    assert found["checks"]["kills"], "nothing was killed"
    assert found["checks"]["acknowledged"] == found["checks"]["pulled"] > 50


def test_the_store_alone_is_measured(tmp_path: Path) -> None:
    words = ["--body", "100", "--count", "500", "--warm-up", "0", "--dir", str(tmp_path)]
    words += ["-X", "mapped_file_size_commit_log=4194304"]
    bench("store", *words, "--json", str(tmp_path / "a.json"))
    found = loaded(tmp_path / "a.json")
    assert set(found["streams"]) == {"put 100 B", "batch 100 B", "walk 100 B"}
    assert all(one["summary"]["messages"] >= 500 for one in found["streams"].values())
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"], "the stores are gone"


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["send", "--body", "12 apples"], "'12 apples' is no size"),
        (["send", "--body", "uniform:9-1"], "no body size"),
        (["send", "--duration", "soon"], "--duration: 'soon' is no duration"),
        (["send", "--rate", "0"], "must be above 0"),
        (["send", "--producers", "0"], "producers is 0"),
        (["e2e", "--body", "8"], "no room for its stamp"),
        (["e2e", "--callers", "batches"], "no batches"),
        (["consume", "--stored", "0"], "stored is 0"),
        (["consume", "--body", "9GiB"], "bodies of 9GiB fit into no request"),
        (["send", "-X", "store.os_page_cash=1"], "there is no setting 'os_page_cash'"),
        (["send", "-X", "store"], "'store' sets nothing"),
        (["send", "--html", "/none/a.html"], "there is no folder '/none'"),
        (["store", "--json", "/none/a.json"], "there is no folder '/none'"),
        (["mixed", "--percent-of-full", "0"], "0 percent of full speed"),
        (["mixed", "--rate", "1", "--percent-of-full", "1"], "not both"),
        (["compare", __file__, __file__], "is no result of keelog bench"),
    ],
)
def test_nonsense_is_refused_before_a_node_is_started(
    words: list[str], cause: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["bench", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "try"]
    assert cause in lines[1]


def test_a_page_without_matplotlib_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(["bench", "send", "--html", str(tmp_path / "a.html")]) == 1
    assert "try: pip install 'matplotlib>=3.9'" in capsys.readouterr().err


PAGE = Path(__file__).resolve().parents[2] / "docs" / "load-testing.md"
SHORTER = (
    (r"--duration \S+", "--duration 1s --warm-up 1s"),
    (r"--count \S+", "--count 400 --warm-up 0"),
    (r"--percent-of-full \S+", "--rate 200"),
    (r"--kill-every \S+", "--kill-every 300ms"),
)


@pytest.mark.faults
@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.xdist_group("bench")
def test_everything_that_the_page_shows_happens(
    node: RunningNode,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The commands run shorter, and against one node."""
    monkeypatch.setenv("COLUMNS", "120")  # the page shows tables that nothing cuts off
    monkeypatch.chdir(tmp_path)
    wrong = []
    for step in steps(PAGE.read_text(encoding="utf-8")):
        command = step.command
        if step.is_python:
            command = command.replace("count=1_000_000", f"count=400, node={node.endpoint!r}")
            exec(compile(command, str(PAGE), "exec"), {"__name__": "__main__"})
        else:
            for pattern, short in SHORTER:
                command = re.sub(pattern, short, command)
            words = shlex.split(command)[1:]
            if words[1] not in ("compare", "store"):
                words += ["--node", node.endpoint]
            assert run(words) == 0, command
        talk = capsys.readouterr()
        if not agrees(step.expected or "…", talk.err + talk.out):
            wrong.append(f"line {step.line}: {command}\n{step.expected}\n{talk.err}{talk.out}")
    assert not wrong, "\n\n".join(wrong)
