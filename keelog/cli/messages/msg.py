"""`keelog msg`: finds single messages through a node."""

from typing import Any

import click

import keelog
from keelog.cli import shapes
from keelog.cli.contexts import complete_topics
from keelog.cli.failures import doing
from keelog.cli.messages.selectors import TIMES, time
from keelog.cli.options import CliGroup, node_options
from keelog.cli.output import Output
from protocol.errors import NotFound


@click.group("msg", cls=CliGroup)
def msg() -> None:
    """Finds single messages through a node.

    Example: keelog msg find --topic orders --key o-17
    """


@msg.command("get")
@click.argument("msg_id", metavar="[ID]", required=False)
@click.option("--physical-offset", type=int, help="Log offset, instead of ID.")
@click.option(
    "--topic", shell_complete=complete_topics, help="With --unique-key, or --queue and --offset."
)
@click.option("--unique-key")
@click.option("--queue", "queue_id", type=int)
@click.option("--offset", "queue_offset", type=int)
@shapes.body_options
@node_options
def get(msg_id: str | None, output: Output, **options: Any) -> int:
    """Prints one message: by its id, log offset, unique key, or place in its queue.

    Example: keelog msg get 7F000001000026A60000000000000000

    Example: keelog msg get --topic orders --queue 0 --offset 17
    """
    node = options.pop("node")
    bodies = shapes.Bodies(options.pop("raw_body"), options.pop("no_body"))
    if msg_id is None and all(value is None for value in options.values()):
        raise click.UsageError("name a message: its ID, or options that say which")
    with doing("cannot get the message"), keelog.connect(node) as client:
        message = client.get(msg_id, **options)
        output.document(bodies.shape(message.record))
    return bodies.end()


@msg.command("find")
@click.option("--topic", required=True, shell_complete=complete_topics)
@click.option("--key", required=True)
@click.option("--since", type=time, metavar="TIME", help=f"Earliest store time: {TIMES}.")
@click.option("--until", type=time, metavar="TIME", help="Latest store time.")
@click.option("--limit", type=click.IntRange(1), default=64, show_default=True, metavar="N")
@click.option("--unique", is_flag=True, help="Looks at UNIQ_KEY only.")
@shapes.on_damage_option
@shapes.body_options
@node_options
def find(topic: str, key: str, output: Output, **options: Any) -> int:
    """Prints the messages with a key, newest first.

    stderr names each damaged message that may have the key; the exit code is 5 then.

    Example: keelog msg find --topic orders --key o-17

    Example: keelog msg find --topic orders --key o-17 --since -2h --limit 1
    """
    node = options.pop("node")
    bodies = shapes.Bodies(options.pop("raw_body"), options.pop("no_body"))
    damage = shapes.DamagedPlaces(fails=options.pop("on_damage") == "fail")
    columns = shapes.MESSAGE_TABLE if output.format == "table" else shapes.MESSAGE_COLUMNS
    with doing(f"cannot find messages of {topic} with key {key}"), keelog.connect(node) as client:
        found = client.find(topic, key, on_damage=damage.pass_over, **options)
        rows = (bodies.shape(message.record) for message in found)
        if not output.rows(rows, columns) and not damage.places:
            raise NotFound(
                f"no message of {topic} has the key {key!r}",
                f"keelog consume {topic} -e -f '%o %k\\n'  shows the keys that there are",
            )
    return damage.end() or bodies.end()
