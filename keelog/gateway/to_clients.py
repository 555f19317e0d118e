"""What a node asks of its clients, over the connections that they opened.

Each request waits until it is answered, is late, or its connection ends. A client repeats the
number of the request, over the connection on which it was asked. An answer that nobody asked
for, or that comes too late, is ignored (RocketMQ: NettyRemotingAbstract).

324 and 325 are replies to messages that a producer sent with `request`, pushed to it by 326. A
consumer makes the reply of the message (MessageUtil#createReplyMessage), which says whose it is.
The node pushes it to that producer, and stores it as well. The rules and their order are those of
RocketMQ's ReplyMessageProcessor. Where users log in, a producer gets replies for which it has asked
(`Replies._check_may_push`).
"""

import asyncio
import logging
from collections.abc import Coroutine, Mapping
from dataclasses import dataclass
from itertools import count
from time import monotonic
from typing import Any

from keelog.gateway.asked_replies import REPLY_TO_CLIENT, Asked, reply_place
from keelog.gateway.connection import Body, RemotingConnection, Reply, Request
from keelog.gateway.guard import check_needs
from keelog.gateway.members import Members
from keelog.gateway.sending.sends import Sends
from keelog.gateway.sending.writer_link import FutureSlot
from keelog.gateway.settings import SEND_EXT, LiveSettings
from node.runtime.event_log import fields
from node.runtime.process import now_ms
from protocol.access.decision import Action
from protocol.access.needs import SUPER, topic_needs
from protocol.errors import MqError, NodeBusy
from protocol.record.properties import decode_properties
from protocol.record.waiting import RealPlace
from protocol.remoting import headers, java_json
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.header_fields import SendMessageHeader

log = logging.getLogger("keelog.gateway")

CLIENT_REQUESTS_MAX = 1_024
"""Requests to all clients without an answer; further ones are refused as busy."""
ANSWER_S_MAX = 10.0
"""How long a client may take, as at a broker (Broker2Client#callClient)."""
REPLY_BYTES_MAX = 64 * 1024 * 1024
"""Bodies of replies that producers have not confirmed; beyond it, replies are refused as busy."""
PUSH_REPLY_TIME = "PUSH_REPLY_TIME"
NOT_STORED = "0"
"""In place of a message id, which a Java client wants."""
_ADDED = "".join(f"{name}\x01{value}\x02" for name, value in SEND_EXT.items())


class ClientRequests:
    """One for each gateway, in the thread of its loop."""

    def __init__(self) -> None:
        self._numbers = count(1)
        self._waiting: dict[int, tuple[RemotingConnection, asyncio.Future[Reply]]] = {}

    def __len__(self) -> int:
        """How many have no answer yet."""
        return len(self._waiting)

    async def ask(
        self,
        connection: RemotingConnection,
        code: RequestCode,
        ext: Mapping[str, str],
        body: Body,
        timeout_s: float = ANSWER_S_MAX,
    ) -> Reply:
        """Sends a request, and returns its answer. Raises NodeBusy beyond CLIENT_REQUESTS_MAX,
        TimeoutError, and ConnectionResetError when the connection has ended."""
        if len(self._waiting) >= CLIENT_REQUESTS_MAX:
            raise NodeBusy(f"{CLIENT_REQUESTS_MAX} requests wait for clients")
        if connection.is_closed:
            raise ConnectionResetError("the client is gone")
        opaque = next(self._numbers) % java_json.INT32_MAX
        coming: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[opaque] = connection, coming
        try:
            connection.send(headers.RemotingHeader(code, opaque, ext=ext), body)
            async with asyncio.timeout(timeout_s):
                return await coming
        finally:
            del self._waiting[opaque]

    def answered(
        self, connection: RemotingConnection, header: headers.RemotingHeader, body: Body = b""
    ) -> None:
        asked, coming = self._waiting.get(header.opaque, (None, None))
        if asked is connection and coming is not None and not coming.done():
            coming.set_result(Reply(header.code, header.ext, bytes(body), header.remark))

    def went(self, connection: RemotingConnection) -> None:
        """A connection is gone: what it was asked fails at once."""
        for asked, coming in list(self._waiting.values()):
            if asked is connection and not coming.done():
                coming.set_exception(ConnectionResetError("the client is gone"))


@dataclass(slots=True, eq=False)
class Replies:
    """One for each gateway. Replies are stored as well where `store_reply_message_enable` is on."""

    _sends: Sends
    _members: Members
    _asked: ClientRequests
    _store_host: str
    _live: LiveSettings
    _topic: str
    """Of replies: only who may send there pushes to clients."""
    _pushed_bytes: int = 0

    def take(self, request: Request, wanted: SendMessageHeader) -> Coroutine[Any, Any, Reply]:
        """324, 325: pushes a reply, then stores it. Raises NotAllowed."""
        check_needs(request, topic_needs(self._topic, Action.PUB))
        return self._push_and_store(request, wanted, bytes(request.body))

    async def _push_and_store(
        self, request: Request, wanted: SendMessageHeader, body: bytes
    ) -> Reply:
        """Raises what refuses a send, and NodeBusy."""
        if self._pushed_bytes + len(body) > REPLY_BYTES_MAX:
            raise NodeBusy(f"{self._pushed_bytes} bytes of replies wait for producers")
        self._pushed_bytes += len(body)
        try:
            place = await self._sends.place_of(wanted)
            failure = await self._push(request, wanted, body)
        finally:
            self._pushed_bytes -= len(body)
        queue_id = str(place.queue_id)
        ext = {**SEND_EXT, "msgId": NOT_STORED, "queueOffset": "0", "queueId": queue_id}
        if self._live.now.store_reply_message_enable:
            ext.update(await self._store(request, wanted, place, body))
        code = ResponseCode.SYSTEM_ERROR if failure else ResponseCode.SUCCESS
        return Reply(code, ext, remark=failure)

    async def _push(self, request: Request, wanted: SendMessageHeader, body: bytes) -> str | None:
        """326. Returns what went wrong. Raises NodeBusy, NotAllowed."""
        place = to, _ = reply_place(decode_properties(wanted.properties.encode()))
        if not to:
            return f"reply message properties[{REPLY_TO_CLIENT}] is null"
        connection = self._members.producers_by_id.get(to)
        if connection is None:
            return f"push reply message fail, channel of <{to}> not found."
        self._check_may_push(request, place, connection)
        ext = self._pushed_fields(wanted, request.connection)
        code = RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT
        try:
            answer = await self._asked.ask(connection, code, ext, body)
        except (TimeoutError, ConnectionError) as error:
            why: object = str(error) or "it does not answer"
        else:
            if answer.code == ResponseCode.SUCCESS:
                return None
            why = answer.remark or answer.code
        log.warning("a reply was not pushed", extra=fields(client=to, why=why))
        return f"push reply message to {to} fail."

    def _check_may_push(
        self, request: Request, place: Asked, connection: RemotingConnection
    ) -> None:
        """Raises NotAllowed unless the producer has asked for the reply, as far as this node knows.

        Its own user may always answer it. Another one where it may read the topic of the request,
        if that came by this node; else where the producer may read the topic of replies: a request
        that another node of the cluster took.
        """
        asker, to = request.asker, place[0]
        if asker is None or asker.may(SUPER):
            return
        waits = self._members.asker_of(to, connection)
        if waits is not None:
            if waits.user.name == asker.user.name:
                return
            topic = self._sends.asked_replies.topic_of(waits.user.name, place, monotonic())
            if topic is not None and asker.may(topic_needs(topic, Action.SUB)):
                return
            if waits.may(topic_needs(self._topic, Action.SUB)):
                return
        why = f"the client {to[:80]!a} has not asked User:{asker.user.name} for a reply here"
        raise asker.refused(f"client {to[:80]!a}", f"{why}; else it needs Sub of {self._topic}.")

    def _pushed_fields(
        self, wanted: SendMessageHeader, connection: RemotingConnection
    ) -> Mapping[str, str]:
        """The header of 326 (ReplyMessageRequestHeader)."""
        now = now_ms()
        known = wanted.properties
        if known and not known.endswith("\x02"):
            known += "\x02"
        properties = f"{known}{_ADDED}{PUSH_REPLY_TIME}\x01{now}\x02"
        return {
            "producerGroup": wanted.producer_group,
            "topic": wanted.topic,
            "defaultTopic": wanted.default_topic,
            "defaultTopicQueueNums": str(wanted.default_topic_queue_nums),
            "queueId": str(wanted.queue_id),
            "sysFlag": str(wanted.sys_flag),
            "bornTimestamp": str(wanted.born_timestamp),
            "flag": str(wanted.flag),
            "properties": properties,
            "reconsumeTimes": str(wanted.reconsume_times),
            "unitMode": str(wanted.unit_mode).lower(),
            "bornHost": str(connection.peer),
            "storeHost": self._store_host or connection.address,
            "storeTimestamp": str(now),
        }

    async def _store(
        self, request: Request, wanted: SendMessageHeader, place: RealPlace, body: bytes
    ) -> Mapping[str, str]:
        """What the answer says about the stored reply; nothing when it could not be stored."""
        slot = FutureSlot()
        try:
            self._sends.put(request, wanted, place, body, _ADDED.encode(), slot)
            outcome = await slot.done
        except MqError as error:
            outcome = error
        if isinstance(outcome, MqError):
            log.warning("a reply was not stored", extra=fields(why=outcome))
            return {}
        return {"msgId": outcome.msg_id, "queueOffset": str(outcome.queue_offset)}
