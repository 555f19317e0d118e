"""What a writer answers besides appends: it is there, and which topics there are."""

from node.writer.topic_table import TopicTable
from protocol.errors import UnknownOperation
from protocol.requests import CREATE_TOPIC, DELETE_TOPIC
from protocol.wire.frames import Header, answer


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
    if operation == "create_topic":
        name, queues, perm = CREATE_TOPIC.parse(header)
        topic, created = table.create(name, queues, perm)
        return answer(number, topic=name, queues=topic.write_queues, created=created)
    if operation == "delete_topic":
        (name,) = DELETE_TOPIC.parse(header)
        return answer(number, topic=name, deleted=table.delete(name))
    raise UnknownOperation(f"the writer knows no operation {operation[:40]!a}")
