"""Options of the Spark commands: --master and --conf, and the session that they ask for."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import click

from keelog.cli.failures import doing
from keelog.cli.output import say
from keelog.pipeline.session import check_pyspark

Function = TypeVar("Function", bound=Callable[..., Any])
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True)
class Asked:
    """The master that runs the job, and Spark's settings for it."""

    master: str
    conf: dict[str, str]

    def run(
        self, what: str, job: Callable[[Any], Answer], check: Callable[[], object] | None = None
    ) -> Answer:
        """Calls `job` with a session and returns its result; errors say that `what` failed.

        `check` runs before Spark, whose start takes ten seconds, and raises what it finds. Raises
        MqError: JavaMissing, IncompatiblePyspark, EngineFailed, or the job's own.
        """
        with doing(what):
            check_pyspark()
            if check is not None:
                check()
            # Imported here: it needs pyspark, which was just checked.
            from keelog.pipeline.jobs.session_run import run_job

            return run_job(job, self.master, self.conf, say)


def session_options(function: Function) -> Function:
    """Adds --master and --conf; the command gets `asked: Asked`."""

    def convert(ctx: click.Context, _parameter: click.Parameter, value: str) -> Asked:
        return Asked(value, dict(ctx.params.pop("_conf", ())))

    def remember(ctx: click.Context, parameter: click.Parameter, values: tuple[str, ...]) -> None:
        pairs = [value.partition("=") for value in values]
        wrong = next((name for name, sign, _ in pairs if not (name and sign)), None)
        if wrong is not None:
            raise click.BadParameter(f"{wrong!r} is no NAME=VALUE", ctx, parameter)
        ctx.params["_conf"] = [(name, value) for name, _, value in pairs]

    function = click.option(
        "--conf",
        multiple=True,
        metavar="NAME=VALUE",
        is_eager=True,
        expose_value=False,
        callback=remember,
        help="Changes a setting of Spark, as --conf spark.driver.memory=2g.",
    )(function)
    return click.option(
        "--master",
        "asked",
        default="local[*]",
        show_default=True,
        metavar="URL",
        callback=convert,
        help="Where it runs: local[2], spark://HOST:7077, yarn.",
    )(function)
