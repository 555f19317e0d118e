"""`keelog demo`: what it cannot send, and its last table, from a Spark job."""

import io
import sys
from collections import Counter
from pathlib import Path

import pytest

import keelog.cli.demo
from keelog.cli.demo import SparkJobFailed, _show_spark, is_spark_there, spark_topics
from keelog.cli.failures import DAMAGED, NOT_FOUND
from keelog.cli.main import run
from keelog.cli.output import Output
from tests.pipeline.jobs.stats.test_report import topic
from tests.support.golden import GetStore, facts


def ended(store: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    """The exit code and stderr of a demo with the messages of a store."""
    code = run(["demo", "--from", str(store), "--directory", str(store.with_name("new"))])
    told = capsys.readouterr()
    assert told.out == ""
    return code, told.err


def test_a_store_whose_log_is_rubbish_is_an_error_and_no_demo_of_nothing(
    golden_copy: GetStore, capsys: pytest.CaptureFixture[str]
) -> None:
    store = golden_copy("small-clean")
    for segment in (store / "commitlog").iterdir():
        segment.write_bytes(b"rubbish!" * (segment.stat().st_size // 8))
    code, told = ended(store, capsys)
    assert code == DAMAGED
    assert "cause: " in told
    assert "no message can be read" in told
    assert not store.with_name("new").exists(), "no node was started for nothing"


def test_a_store_without_messages_to_send_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store = tmp_path / "store"
    (store / "commitlog").mkdir(parents=True)
    (store / "commitlog" / "00000000000000000000").write_bytes(bytes(4096))
    code, told = ended(store, capsys)
    assert code == NOT_FOUND
    assert "no message to send" in told


def shown(monkeypatch: pytest.MonkeyPatch, is_there: bool, is_asked_for: bool = False) -> str:
    stream = io.BytesIO()
    made = [topic("orders", 1234), topic("%RETRY%" + "t" * 248, 7), topic("%DLQ%billing", 3)]
    monkeypatch.setattr(keelog.cli.demo, "is_spark_there", lambda: is_there)
    monkeypatch.setattr(keelog.cli.demo, "spark_topics", lambda *_: made)
    _show_spark("store", is_asked_for, Output("table", stream))
    return stream.getvalue().decode()


def test_the_table_of_the_job_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    text = shown(monkeypatch, is_there=True)
    assert "what a Spark job counts in the store, topics of retries left out\ntopic " in text
    assert "orders  2       1,234" in text
    assert "%" not in text


def test_without_spark_a_line_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert shown(monkeypatch, is_there=False) == ""
    assert "pip install 'pyspark>=4.2,<4.4' 'pyarrow>=18'" in capsys.readouterr().err
    assert "orders" in shown(monkeypatch, is_there=False, is_asked_for=True)


def test_spark_is_there_in_the_tests() -> None:
    assert is_spark_there()


def test_a_job_that_fails_is_told_with_its_last_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    program = tmp_path / "python"
    program.write_text("#!/bin/sh\necho first >&2\necho '[KEELOG_X] no Java' >&2\nexit 3\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    with pytest.raises(SparkJobFailed, match=r"ended with 3: \[KEELOG_X\] no Java"):
        spark_topics("store")
    assert "Spark" in capsys.readouterr().err.splitlines()[0]


@pytest.mark.spark_long
@pytest.mark.process
@pytest.mark.timeout(400)
def test_the_job_counts_what_rocketmq_says_of_the_store(
    golden: GetStore, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = spark_topics(str(golden("small-clean")))
    known = Counter(fact["topic"] for fact in facts("small-clean").messages)
    assert {row["topic"]: row["messages"] for row in rows} == known
    assert "took" in capsys.readouterr().err.splitlines()[-1]
