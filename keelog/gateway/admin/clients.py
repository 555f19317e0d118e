"""The connected clients as tools list them (203, 204, 328) or ask them something (223, 307, 309).

Members of groups are 203, producers 204 and 328. Requests of tools to a client go to it over the
client's own connection. Their replies go back as they are: a stack of threads can be megabytes.
"""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import monotonic
from typing import Any

from keelog.gateway.connection import RemotingConnection, Reply, Request, json_reply, system_error
from keelog.gateway.members import Group, GroupMember, Members
from keelog.gateway.to_clients import ClientRequests
from node.runtime.process import now_ms
from protocol.errors import MqError, NotFound
from protocol.ids import parse_offset_message_id
from protocol.record.codec import Record
from protocol.remoting.bodies import GetConsumerStatusBody
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.header_fields import (
    ConsumeDirectlyHeader,
    ConsumerStatusHeader,
    RunningInfoHeader,
    request_fields,
)
from protocol.remoting.java_json import read_body

CLIENTS_SHOWN_MAX = 50_000
"""Producers of one reply to 328; further ones are left out."""
STATUS_S_MAX = 5.0
"""How long each client may take for 221 (Broker2Client#getConsumeStatus)."""


@dataclass(slots=True, eq=False)
class ClientHandlers:
    """One for each gateway. `_look_up` returns the record at a log offset."""

    _members: Members
    _asked: ClientRequests
    _broker: str
    _look_up: Callable[[int], Record]

    def of_group(self, request: Request) -> Reply:
        """203: the members of a group and what it subscribes; 206 where nobody is."""
        name = request_fields(request.header).consumer_group
        group = self._members.find(name)
        if group is None:
            text = f"the consumer group[{name}] not online"
            return Reply(ResponseCode.CONSUMER_NOT_ONLINE, remark=text)
        return json_reply(
            {
                "connectionSet": _shown(group.members),
                "consumeFromWhere": group.consume_from_where,
                "consumeType": group.consume_type,
                "messageModel": group.message_model,
                "subscriptionTable": group.subscriptions,
            }
        )

    def of_producers(self, request: Request) -> Reply:
        """204: the producers of a group."""
        name = request_fields(request.header).producer_group
        members = self._members.producers.get(name)
        if members is None:
            return system_error(f"the producer group[{name}] not exist")
        return json_reply({"connectionSet": _shown(members)})

    def all_producers(self, _: Request) -> Reply:
        """328: the producers of all groups."""
        table, left, wall = {}, CLIENTS_SHOWN_MAX, now_ms() - int(monotonic() * 1000)
        for name, members in sorted(self._members.producers.items()):
            rows = [
                {
                    "clientId": one.client_id,
                    "language": one.language,
                    "lastUpdateTimestamp": wall + int(one.beat_at * 1000),
                    "remoteIP": f"/{connection.peer}",
                    "version": one.version,
                }
                for connection, one in list(members.items())[:left]
            ]
            table[name] = rows
            left -= len(rows)
        return json_reply({"data": table})

    async def running_info(self, request: Request) -> Reply:
        """307: what a client does."""
        wanted: RunningInfoHeader = request_fields(request.header)
        return await self._call(
            wanted.consumer_group,
            wanted.client_id,
            RequestCode.GET_CONSUMER_RUNNING_INFO,
            request.header.ext,
            b"",
        )

    async def consume(self, request: Request) -> Reply:
        """309: a client gets a message outside of the order, and reports what became of it.

        Raises BadRequest for what is no message id, NotFound.
        """
        wanted: ConsumeDirectlyHeader = request_fields(request.header)
        record = self._look_up(parse_offset_message_id(wanted.msg_id)[1])
        ext = {
            **request.header.ext,
            "brokerName": self._broker,
            "topicSysFlag": "0",
            "groupSysFlag": "0",
        }
        code = RequestCode.CONSUME_MESSAGE_DIRECTLY
        return await self._call(wanted.consumer_group, wanted.client_id, code, ext, record.raw)

    async def _call(
        self, group: str, client: str, code: RequestCode, ext: Mapping[str, str], body: bytes
    ) -> Reply:
        """As AdminBrokerProcessor#callConsumer."""
        connection = _connection_of(self._members.find(group), client)
        if connection is None:
            return system_error(f"The Consumer <{group}> <{client}> not online")
        try:
            return await self._asked.ask(connection, code, ext, body)
        except TimeoutError:
            text = f"consumer <{group}> <{client}> Timeout"
            return Reply(ResponseCode.CONSUME_MSG_TIMEOUT, remark=text)
        except ConnectionResetError as error:
            return system_error(f"invoke consumer <{group}> <{client}> Exception: {error}")

    async def status(self, request: Request) -> Reply:
        """223: the offsets that clients of a group have in memory, of all or of one."""
        wanted: ConsumerStatusHeader = request_fields(request.header)
        group = self._members.find(wanted.group)
        if group is None:
            raise NotFound(f"No Any Consumer online in the consumer group: [{wanted.group}]")
        ext = {"topic": wanted.topic, "group": wanted.group}
        table = {}
        wants_all = not wanted.client_addr.strip()
        asked = {
            connection: member
            for connection, member in group.members.items()
            if wants_all or wanted.client_addr == member.client_id
        }
        replies = await asyncio.gather(*(self._status_of(one, ext) for one in asked))
        for member, found in zip(asked.values(), replies, strict=True):
            if found is not None and not found.code and found.body:
                body = read_body(GetConsumerStatusBody, found.body)
                table[member.client_id] = body.message_queue_table
        return json_reply(GetConsumerStatusBody(consumer_table=table))

    async def _status_of(
        self, connection: RemotingConnection, ext: Mapping[str, str]
    ) -> Reply | None:
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        try:
            return await self._asked.ask(connection, code, ext, b"", STATUS_S_MAX)
        except (TimeoutError, ConnectionResetError, MqError):
            return None


def _shown(members: Mapping[RemotingConnection, GroupMember]) -> list[dict[str, Any]]:
    return [
        {
            "clientAddr": str(connection.peer),
            "clientId": one.client_id,
            "language": one.language,
            "version": one.version,
        }
        for connection, one in members.items()
    ]


def _connection_of(group: Group | None, client_id: str) -> RemotingConnection | None:
    for connection, member in () if group is None else group.members.items():
        if member.client_id == client_id:
            return connection
    return None
