"""`keelog cheat`: the examples of all `--help` texts, by subject."""

from collections.abc import Iterator
from typing import NamedTuple

import click

from keelog.cli.failures import OK
from keelog.cli.options import CliCommand, command


class Subject(NamedTuple):
    """A task, and the commands for it; a group means all of its commands."""

    what: str
    commands: tuple[str, ...]
    others: str = ""
    """Lines that are no commands of ours."""


MQADMIN = """\
# RocketMQ's own mqadmin, at a node that is its own name server
keelog serve ./store --remoting 127.0.0.1:10911
mqadmin clusterList -n 127.0.0.1:10911
mqadmin brokerStatus -b 127.0.0.1:10911
mqadmin topicStatus -n 127.0.0.1:10911 -t orders
mqadmin consumerProgress -n 127.0.0.1:10911 -g billing
mqadmin resetOffsetByTime -n 127.0.0.1:10911 -g billing -t orders -s now
mqadmin queryMsgByKey -n 127.0.0.1:10911 -t orders -k order-17"""
SUBJECTS = {
    "node": Subject("start a node, see how it is", ("serve", "health", "status", "top", "diag")),
    "messages": Subject(
        "send, read, export, find messages", ("produce", "consume", "export", "msg", "dead")
    ),
    "topics": Subject("list, make, remove topics", ("topic", "group")),
    "store": Subject("read, check, mend, export a directory, without a node", ("store",)),
    "replica": Subject("promote, demote, rewind the store of a replica", ("replica",)),
    "settings": Subject("settings files, and names for nodes", ("config", "context")),
    "load": Subject("put a node under load", ("bench",)),
    "spark": Subject("Spark jobs on a store", ("spark",)),
    "rocketmq": Subject("for hands that know mqadmin, and a broker's files", ("demo",), MQADMIN),
    "help": Subject("help, examples, completion", ("help", "cheat", "completion", "version")),
}


@command("cheat")
@click.argument("subject", required=False, metavar="[SUBJECT]", type=click.Choice(list(SUBJECTS)))
def cheat(subject: str | None) -> int:
    """Prints commands to paste, by subject; without a subject it lists the subjects.

    They are the examples of the commands' --help.

    Example: keelog cheat

    Example: keelog cheat messages
    """
    if subject is None:
        width = max(map(len, SUBJECTS))
        for name, entry in SUBJECTS.items():
            click.echo(f"keelog cheat {name.ljust(width)}  {entry.what}")
        return OK
    others = SUBJECTS[subject].others
    blocks = [others] if others else []
    blocks += [
        "\n".join((f"# keelog {path}: {one.get_short_help_str(1_000)}", *one.examples))
        for name in SUBJECTS[subject].commands
        for path, one in _leaves(name)
    ]
    click.echo("\n\n".join(blocks))
    return OK


def _leaves(name: str) -> Iterator[tuple[str, CliCommand]]:
    """A command, or the commands of a group, with all of their words."""
    # Imported here: it imports this module.
    from keelog.cli.main import cli

    context = click.Context(cli)
    found = cli.get_command(context, name)
    if isinstance(found, CliCommand):
        yield name, found
    elif isinstance(found, click.Group):
        for below in found.list_commands(context):
            one = found.get_command(context, below)
            assert isinstance(one, CliCommand), f"{name} {below}"
            yield f"{name} {below}", one
