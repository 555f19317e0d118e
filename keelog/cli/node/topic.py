"""`keelog topic`: lists, describes, makes and removes topics."""

from dataclasses import asdict

import click

import keelog
from keelog.cli.completion import complete_topics
from keelog.cli.failures import OK, doing
from keelog.cli.options import CliGroup, node_option, output_options
from keelog.cli.output import Output, say
from protocol.errors import UnknownTopic


@click.group("topic", cls=CliGroup)
def topic() -> None:
    """Lists, describes, makes and removes topics.

    Example: keelog topic ls
    """


@topic.command("ls")
@node_option
@output_options
def ls(node: str, output: Output) -> int:
    """Lists the topics, and how many messages each has.

    Example: keelog topic ls --json
    """
    with doing(f"cannot list the topics of {node}"), keelog.connect(node) as client:
        rows = [
            {
                **asdict(info),
                "messages": sum(
                    queue.max_offset - queue.min_offset for queue in client.offsets(info.topic)
                ),
            }
            for info in sorted(client.topics(), key=lambda one: one.topic)
        ]
    output.rows(rows)
    return OK


@topic.command("describe")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@node_option
@output_options
def describe(name: str, node: str, output: Output) -> int:
    """Shows the queues of a topic with their first and next offset.

    Example: keelog topic describe orders
    """
    with doing(f"cannot describe topic {name}"), keelog.connect(node) as client:
        info = next((one for one in client.topics() if one.topic == name), None)
        if info is None:
            raise UnknownTopic(f"there is no topic {name}")
        found = client.offsets(name)
    queues = [
        {
            "topic": name,
            "queue_id": queue.queue_id,
            "min_offset": queue.min_offset,
            "max_offset": queue.max_offset,
        }
        for queue in found
    ]
    document = {
        "topic": name,
        "perm": info.perm,
        "read_queues": info.read_queues,
        "write_queues": info.write_queues,
        "queues": queues,
    }
    output.document(document, table=queues)
    behind = ", ".join(str(queue.queue_id) for queue in found if queue.is_behind)
    if behind:
        say(f"queues {behind} may end later: their worker is behind the log")
        say("see it with: keelog status")
    return OK


@topic.command("create")
@click.argument("name", metavar="TOPIC")
@click.option("--queues", type=click.IntRange(1), default=8, show_default=True, metavar="N")
@click.option(
    "--perm", type=click.IntRange(0, 7), default=6, show_default=True, help="2 write, 4 read."
)
@node_option
@output_options
def create(name: str, queues: int, perm: int, node: str, output: Output) -> int:
    """Makes a topic, or changes the number of queues of one that is there.

    Example: keelog topic create orders --queues 4
    """
    with doing(f"cannot create topic {name}"), keelog.connect(node) as client:
        made = client.create_topic(name, queues, perm=perm, exist_ok=True)
    output.document(asdict(made))
    return OK


@topic.command("rm")
@click.argument("name", metavar="TOPIC", shell_complete=complete_topics)
@node_option
@output_options
def remove(name: str, node: str, output: Output) -> int:
    """Removes a topic. Its messages stay in the log until retention takes them.

    Example: keelog topic rm orders
    """
    with doing(f"cannot remove topic {name}"), keelog.connect(node) as client:
        if not client.delete_topic(name):
            raise UnknownTopic(f"there is no topic {name}")
    output.document({"topic": name, "deleted": True})
    return OK
