"""`keelog mqadmin NAME …`: RocketMQ's mqadmin commands for hands and runbooks that know them.

Each becomes one of ours, which is printed on stderr and then run. A command without a counterpart
names what to use instead.
"""

import shlex
from collections.abc import Sequence
from typing import Any

import click

from keelog.cli.failures import OK, doing
from keelog.cli.mqadmin.names import ALIASES, SEND, translate
from keelog.cli.mqadmin.words import read_words
from keelog.cli.options import CliCommand
from keelog.cli.output import Output, say
from protocol.addresses import without_credentials
from protocol.errors import BadRequest


class _Rest(CliCommand):
    """A command that passes on every word after NAME, -h too."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Splits nothing: mqadmin's flags are not click's."""
        if not args or args[0] in ("-h", "--help"):
            return super().parse_args(ctx, args[:1] or ["--help"])
        ctx.params["words"] = tuple(args)
        return []


def _names(_ctx: click.Context, _parameter: click.Parameter, incomplete: str) -> list[Any]:
    return [name for name in ALIASES if name.startswith(incomplete)]


@click.command("mqadmin", cls=_Rest, context_settings={"help_option_names": ["-h", "--help"]})
@click.argument("words", metavar="NAME [FLAGS]", nargs=-1, shell_complete=_names)
def mqadmin(words: tuple[str, ...]) -> object:
    """RocketMQ's mqadmin commands with their own flags, each as one of ours.

    -n HOST:PORT is the node, as --node tcp://HOST:PORT; -b does where there is no -n. Without
    both the node is found as for every command. A cluster (-c) is read and ignored.

    \b
    topicList          keelog topic ls
    topicStatus        keelog topic describe
    updateTopic        keelog topic create
    deleteTopic        keelog topic rm
    topicRoute, clusterList, brokerStatus
                       keelog status
    statsAll           keelog top --once
    queryMsgById, queryMsgByOffset, queryMsgByUniqueKey
                       keelog msg get
    queryMsgByKey      keelog msg find
    printMsg, printMsgByQueue, consumeMessage, queryCq
                       keelog consume
    sendMessage        keelog produce

    Example: keelog mqadmin topicList -n 127.0.0.1:7850

    Example: keelog mqadmin topicStatus -t orders
    """
    # Imported here: it imports this module.
    from keelog.cli.main import cli

    name, *rest = words
    with doing(f"cannot run mqadmin {name[:80]}"):
        ours = translate(name, rest)
    say(without_credentials(f"this is: keelog {shlex.join(ours)}"))
    if name == SEND:
        return _send(rest)
    return cli.main(args=list(ours), prog_name="keelog", standalone_mode=False)


def _send(words: Sequence[str]) -> int:
    """`sendMessage` has its body in a flag; `keelog produce` would read stdin."""
    import keelog
    from keelog.cli import contexts
    from keelog.cli.shapes import receipt_shape

    said = read_words(SEND, ALIASES[SEND], words)
    topic, body = said["-t"], said["-p"]
    queue = said.get("-i")
    if queue is not None and not queue.isdecimal():
        raise BadRequest(f"-i {queue} is no queue", "write a number")
    place = contexts.find(click.get_current_context(), said.node)
    with doing(f"cannot send to {topic}"), keelog.connect(place.url) as client:
        receipt = client.send(
            topic,
            body.encode(),
            keys=said.get("-k", ()),
            tags=said.get("-c"),
            queue_id=None if queue is None else int(queue),
        )
    Output().rows([receipt_shape(receipt)])
    return OK
