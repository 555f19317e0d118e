"""The connected clients: the members of groups (203), and producers (204, 328)."""

from collections.abc import Mapping
from time import monotonic

from keelog.gateway.connection import RemotingConnection, Reply, Request
from keelog.gateway.members import GroupMember, Members
from node.runtime.process import now_ms
from protocol.remoting.bodies import (
    ClientConnection,
    ConsumerConnection,
    ProducerConnection,
    ProducerInfo,
    ProducerTable,
)
from protocol.remoting.codes import ResponseCode
from protocol.remoting.header_fields import request_fields
from protocol.remoting.java_json import write_body

CLIENTS_SHOWN_MAX = 50_000
"""Producers of one reply to 328; further ones are left out."""


class Connections:
    """One for each gateway, in the thread of its loop."""

    def __init__(self, members: Members) -> None:
        self._members = members

    def of_group(self, request: Request) -> Reply:
        """203: the members of a group and what it subscribes; 206 where nobody is."""
        name = request_fields(request.header).consumer_group
        group = self._members.find(name)
        if group is None:
            text = f"the consumer group[{name}] not online"
            return Reply(ResponseCode.CONSUMER_NOT_ONLINE, remark=text)
        body = ConsumerConnection(
            _shown(group.members),
            group.subscriptions,
            group.consume_type,
            group.message_model,
            group.consume_from_where,
        )
        return Reply(body=write_body(body, standard=True))

    def of_producers(self, request: Request) -> Reply:
        """204: the producers of a group."""
        name = request_fields(request.header).producer_group
        members = self._members.producers.get(name)
        if members is None:
            text = f"the producer group[{name}] not exist"
            return Reply(ResponseCode.SYSTEM_ERROR, remark=text)
        return Reply(body=write_body(ProducerConnection(_shown(members)), standard=True))

    def all_producers(self, _: Request) -> Reply:
        """328: the producers of all groups."""
        table, left, wall = {}, CLIENTS_SHOWN_MAX, now_ms() - int(monotonic() * 1000)
        for name, members in sorted(self._members.producers.items()):
            rows = [
                ProducerInfo(
                    one.client_id,
                    f"/{connection.peer}",
                    one.language,
                    one.version,
                    wall + int(one.beat_at * 1000),
                )
                for connection, one in list(members.items())[:left]
            ]
            table[name] = tuple(rows)
            left -= len(rows)
        return Reply(body=write_body(ProducerTable(table), standard=True))


def _shown(members: Mapping[RemotingConnection, GroupMember]) -> tuple[ClientConnection, ...]:
    return tuple(
        ClientConnection(one.client_id, str(connection.peer), one.language, one.version)
        for connection, one in members.items()
    )
