"""What a writer answers besides appends: it is there, and which topics there are."""

from node.writer.topic_table import TopicTable
from protocol.errors import UnknownOperation
from protocol.wire.frames import Header, answer, take, take_int

_PERM_MAX = 15


def answer_other(table: TopicTable, operation: str, header: Header, number: int) -> Header:
    """The good answer to `ping`, `topics`, `create_topic` or `delete_topic`.

    Raises UnknownOperation, BadRequest, and what the table refuses.
    """
    if operation == "ping":
        return answer(number)
    if operation == "topics":
        rows = [
            {
                "topic": topic.name,
                "read_queues": topic.read_queues,
                "write_queues": topic.write_queues,
                "perm": topic.perm,
            }
            for topic in table.all()
        ]
        return answer(number, topics=rows)
    name = take(header, "topic", str) if operation in ("create_topic", "delete_topic") else ""
    if operation == "create_topic":
        queues = take_int(header, "queues", 1, 2**31 - 1)
        perm = take_int(header, "perm", 0, _PERM_MAX, 6)
        topic, created = table.create(name, queues, perm)
        return answer(number, topic=name, queues=topic.write_queues, created=created)
    if operation == "delete_topic":
        return answer(number, topic=name, deleted=table.delete(name))
    raise UnknownOperation(f"the writer knows no operation {operation[:40]!a}")
