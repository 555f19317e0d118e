"""Requests of tools to a client go to it over the client's own connection: 223, 307, 309.

Their replies go back as they are: a stack of threads can be megabytes.
"""

import asyncio
from collections.abc import Callable, Mapping

from keelog.gateway.connection import RemotingConnection, Reply, Request
from keelog.gateway.members import Group, Members
from keelog.gateway.to_clients.client_requests import ClientAnswer, ClientRequests
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
from protocol.remoting.java_json import read_body, write_body

STATUS_S_MAX = 5.0
"""How long each client may take for 221 (Broker2Client#getConsumeStatus)."""


class ClientCalls:
    """One for each gateway. `look_up` returns the record at a log offset."""

    def __init__(
        self,
        members: Members,
        asked: ClientRequests,
        broker: str,
        look_up: Callable[[int], Record],
    ) -> None:
        self._members = members
        self._asked = asked
        self._broker = broker
        self._look_up = look_up

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
        connection = _find(self._members.find(group), client)
        if connection is None:
            text = f"The Consumer <{group}> <{client}> not online"
            return Reply(ResponseCode.SYSTEM_ERROR, remark=text)
        try:
            found = await self._asked.ask(connection, code, ext, body)
        except TimeoutError:
            text = f"consumer <{group}> <{client}> Timeout"
            return Reply(ResponseCode.CONSUME_MSG_TIMEOUT, remark=text)
        except ConnectionResetError as error:
            text = f"invoke consumer <{group}> <{client}> Exception: {error}"
            return Reply(ResponseCode.SYSTEM_ERROR, remark=text)
        return Reply(found.header.code, found.header.ext, found.body, found.header.remark)

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
            if found is not None and not found.header.code and found.body:
                body = read_body(GetConsumerStatusBody, found.body)
                table[member.client_id] = body.message_queue_table
        body = GetConsumerStatusBody(consumer_table=table)
        return Reply(body=write_body(body, standard=True))

    async def _status_of(
        self, connection: RemotingConnection, ext: Mapping[str, str]
    ) -> ClientAnswer | None:
        code = RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT
        try:
            return await self._asked.ask(connection, code, ext, b"", STATUS_S_MAX)
        except (TimeoutError, ConnectionResetError, MqError):
            return None


def _find(group: Group | None, client_id: str) -> RemotingConnection | None:
    for connection, member in () if group is None else group.members.items():
        if member.client_id == client_id:
            return connection
    return None
