"""`keelog bench …`: load tests; the scripts `load_…` and `bench_store` are the same code."""

from typing import Any

import click

from keelog.cli.bench_compare import compare
from keelog.cli.bench_options import (
    message_options,
    output_and_limit_options,
    place_options,
    reading_options,
    sending_options,
    time_options,
)
from keelog.cli.bench_run import run_load
from keelog.cli.options import Command


@click.group()
def bench() -> None:
    """Measures a node under load: a line each second, then figures, as JSON or a page too.

    Without --node each command starts a node of its own on a temporary folder.

    Example: keelog bench send --duration 10s

    Example: keelog bench compare before.json after.json
    """


Command.adopt(bench)


@bench.command("send")
@sending_options
@message_options
@time_options
@place_options
@output_and_limit_options
def send(**options: Any) -> int:
    """Sends messages: by default 64 producers, one at a time, 128 bytes each.

    Example: keelog bench send --callers batches --batch 100 --html send.html

    Example: keelog bench send --rate 5K --max-p99 5ms
    """
    return run_load("send", options)


@bench.command("consume")
@reading_options
@click.option("--stored", metavar="N", help="Messages to read, stored before; default 1M.")
@click.option(
    "--as", "read_as", type=click.Choice(("objects", "raw")), help="What is made of each."
)
@message_options
@time_options
@place_options
@output_and_limit_options
def consume(**options: Any) -> int:
    """Stores messages, then reads them from end to end, again and again; with --count, once.

    Example: keelog bench consume --count 5M --as raw
    """
    return run_load("consume", options)


@bench.command("e2e")
@sending_options
@reading_options
@message_options
@time_options
@place_options
@output_and_limit_options
def e2e(**options: Any) -> int:
    """From the send to a consumer that waits in long pulls: 1,000 a second by default.

    Producers and consumers are processes of their own; bodies carry the time of the send.

    Example: keelog bench e2e --rate 1000 --max-p99 5ms
    """
    options["rate"] = options["rate"] or "1000"
    options["producers"] = options["producers"] or options["processes"] or 1
    return run_load("e2e", options)


bench.add_command(compare)
