"""`keelog help`, `cheat` and `completion`: the command line explains itself.

`help` explains a command, or something that many commands share. `cheat` shows the examples of all
`--help` texts, by subject. `completion` prints what a shell needs to complete commands and topics.
"""

from collections.abc import Iterator
from typing import NamedTuple

import click
from click.shell_completion import get_completion_class

import keelog
from keelog.cli.options import CliCommand, command

TOPICS = {
    "exit-codes": """\
0    ok
1    the operation failed
2    usage: a wrong command, option or setting
3    nothing found
4    node unreachable, or timed out
5    damage found
6    store locked or busy
7    partial success, or a limit that was asked for was broken (--max-p99)
130  interrupted

An error is three lines on stderr: error: what failed, cause: why, try: one command.
A closed pipe ends a command quietly with 0.
""",
    "formats": """\
table  aligned columns, for people: the default on a terminal
jsonl  one JSON object a line: the default otherwise; --jsonl says it too
json   one JSON document; --json says it too
csv    a line of names, then values
help   the fields of the command's JSON; nothing else is done

Data is on stdout, all talk on stderr. Times are ms since 1970, bodies are body (text) or body_b64.
""",
    "places": """\
start                first message of each queue
end                  behind the last one
123                  the queue offset 123
+5                   behind the first five messages of each queue
-10                  the last ten messages of each queue
2026-11-20T10:00     the first stored at or after this time (local without a zone)
-15m                 the same, so long before now: s, m, h, d, w; -1h30m
@1795248083173       the same, in ms since 1970
FROM:TO              from one place up to another: keelog consume orders --from -1h:-30m

Options that take only a time (--since, --until, --time) take these times, too, and a number as ms
since 1970. An @ may be before each time. 15m is -15m; for --deliver-at it is +15m, after now.
""",
    "node": """\
Which node a command talks to; the first of these that is said:

--node URL                 the option
-c NAME, --context NAME    a context, before the command: keelog -c prod topic ls
KEELOG_NODE=URL            the variable
KEELOG_CONTEXT=NAME        a context, by variable
keelog context use NAME    the context in use
                           tcp://127.0.0.1:7850

`keelog config show --origin` says which it is. `keelog store …` needs no node, and
`keelog bench …` starts one of its own unless it has --node.
""",
}
SHELLS = ("bash", "zsh", "fish")
MQADMIN = """\
# RocketMQ's own mqadmin, at a node that is its own name server
keelog serve ./store --remoting 127.0.0.1:10911
mqadmin clusterList -n 127.0.0.1:10911
mqadmin brokerStatus -b 127.0.0.1:10911
mqadmin topicStatus -n 127.0.0.1:10911 -t orders
mqadmin consumerProgress -n 127.0.0.1:10911 -g billing
mqadmin resetOffsetByTime -n 127.0.0.1:10911 -g billing -t orders -s now
mqadmin queryMsgByKey -n 127.0.0.1:10911 -t orders -k order-17"""


@command("help")
@click.argument("words", nargs=-1, metavar="[COMMAND... | TOPIC]")
def help_(words: tuple[str, ...]) -> None:
    """Prints the help of a command, or explains a topic: exit-codes, formats, places, node.

    Example: keelog help exit-codes

    Example: keelog help store dump
    """
    if len(words) == 1 and words[0] in TOPICS:
        click.echo(TOPICS[words[0]], nl=False)
        return
    # Imported here: it imports this module.
    from keelog.cli.main import cli

    context = click.Context(cli, info_name="keelog", help_option_names=["-h", "--help"])
    for word in words:
        group = context.command
        found = group.get_command(context, word) if isinstance(group, click.Group) else None
        if found is None:
            raise click.UsageError(
                f"there is no command {' '.join(words)!r}, and no topic; topics are"
                f" {', '.join(TOPICS)}"
            )
        context = click.Context(found, info_name=word, parent=context)
    click.echo(context.get_help())


@command("version")
def version_() -> None:
    """Prints the version, as --version does.

    Example: keelog version
    """
    click.echo(f"keelog {keelog.__version__}")


class Subject(NamedTuple):
    """A task, and the commands for it; a group means all of its commands."""

    what: str
    commands: tuple[str, ...]
    others: str = ""
    """Lines that are no commands of ours."""


SUBJECTS = {
    "node": Subject(
        "start a node, see how it is", ("serve", "health", "status", "top", "console", "diag")
    ),
    "messages": Subject(
        "send, read, export, find messages", ("produce", "consume", "export", "msg", "dead")
    ),
    "topics": Subject("list, make, remove topics", ("topic", "group")),
    "users": Subject("users, and what they may do", ("user", "acl")),
    "store": Subject("read, check, mend, export a directory, without a node", ("store",)),
    "replica": Subject("promote, demote, rewind the store of a replica", ("replica",)),
    "settings": Subject("settings files, names for nodes, and keys", ("config", "context", "key")),
    "load": Subject("put a node under load", ("bench",)),
    "spark": Subject("Spark jobs on a store", ("spark",)),
    "rocketmq": Subject("for hands that know mqadmin, and a broker's files", ("demo",), MQADMIN),
    "help": Subject("help, examples, completion", ("help", "cheat", "completion", "version")),
}


@command("cheat")
@click.argument("subject", required=False, metavar="[SUBJECT]", type=click.Choice(list(SUBJECTS)))
def cheat_(subject: str | None) -> None:
    """Prints commands to paste, by subject; without a subject it lists the subjects.

    They are the examples of the commands' --help.

    Example: keelog cheat

    Example: keelog cheat messages
    """
    if subject is None:
        width = max(map(len, SUBJECTS))
        for name, entry in SUBJECTS.items():
            click.echo(f"keelog cheat {name.ljust(width)}  {entry.what}")
        return
    others = SUBJECTS[subject].others
    blocks = [others] if others else []
    blocks += [
        "\n".join((f"# keelog {path}: {one.get_short_help_str(1_000)}", *one.examples))
        for name in SUBJECTS[subject].commands
        for path, one in _leaves(name)
    ]
    click.echo("\n\n".join(blocks))


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


@command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def completion_(shell: str) -> None:
    """Prints the completion script of a shell. Topics are completed from the node, if it runs.

    Put it where the shell looks: for bash `eval "$(keelog completion bash)"` in ~/.bashrc, for zsh
    the same with zsh in ~/.zshrc, behind compinit, for fish the file
    ~/.config/fish/completions/keelog.fish.

    Example: keelog completion bash

    Example: keelog completion fish > keelog.fish
    """
    # Imported here: it imports this module.
    from keelog.cli.main import cli

    kind = get_completion_class(shell)
    assert kind is not None, "click knows the three"
    script = kind(cli, {}, "keelog", "_KEELOG_COMPLETE").source()
    # click's script for fish splits at each comma, and so loses the rest of a description.
    click.echo(script.replace('string split ","', 'string split --max 1 ","'))
