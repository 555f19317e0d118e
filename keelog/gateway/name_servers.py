"""The node at its name servers: registered there, so that RocketMQ's clients find it among others.

A name server forgets a broker as soon as its connection ends, so one stays open to each of them
(`RemotingCaller`: our requests out, the replies of the peer in). They know nothing of each other:
what happens to one of them does not matter to the rest.

`OtherMasters` looks whether another master runs under this one's name: at each name server, and
where the master was that this node followed before it was promoted. A name server lets no master
take the place of one with a newer state version (RouteInfoManager#registerBroker). That of a
promoted node is where its log began to be its own: the last one to be promoted stays.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import NamedTuple, Self
from zlib import crc32

from keelog.client.event_loop import pass_on_error
from keelog.gateway.connection import Reply
from keelog.gateway.settings import MASTER, BrokerName
from keelog.gateway.topics import Topics
from node.access.own_credentials import NOT_KNOWN_THERE, OwnCredentials
from node.access.tls import ClientTls
from node.access.tls_settings import TlsRefused
from node.runtime import addresses, disk, run_files
from node.runtime.event_log import fields
from node.store.identity import roles
from protocol.access.credentials import Credentials, signed
from protocol.addresses import is_loopback
from protocol.errors import MqError, RefusedError
from protocol.record.codec import CRC_MASK
from protocol.remoting import bodies, frame_reader, headers, java_json
from protocol.remoting.codes import BrokenFrame, RequestCode, ResponseCode

log = logging.getLogger("keelog.gateway")

FIRST_ROOM_BYTES = 4_096
"""Replies are small, and a larger one makes room."""
LOOK_S = 10.0
"""Between two looks at the address of the old master."""
ANSWER_S = 3.0
OLD_MASTER = ""
"""In place of a name server: the address of the old master itself."""
REGISTERED_TWICE = 2
"""Registrations without success, after which another master counts as the newer one."""


class RemotingCaller(asyncio.BufferedProtocol):
    """One connection. Make it with `connect`; all runs in the loop's thread. It ignores what nobody
    asked for: replies that come too late, and requests of the peer."""

    def __init__(self, credentials: Credentials | None = None) -> None:
        """Each request is signed with the credentials."""
        self._credentials = credentials
        self.lost: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        """Done, with the reason as a text, once the connection has ended."""
        self._reader = frame_reader.FrameReader(FIRST_ROOM_BYTES)
        self._waiting: dict[int, asyncio.Future[Reply]] = {}
        self._numbers = count(1)
        self._transport: asyncio.Transport | None = None

    @classmethod
    async def connect(
        cls,
        host: str,
        port: int,
        timeout_s: float,
        tls: ClientTls | None = None,
        credentials: OwnCredentials | None = None,
    ) -> Self:
        """Raises OSError, TimeoutError, and TlsRefused for files of TLS that cannot be used."""
        loop = asyncio.get_running_loop()
        context = None if tls is None else tls.context()
        made = partial(cls, None if credentials is None else credentials.now())
        async with asyncio.timeout(timeout_s):
            _, caller = await loop.create_connection(made, host, port, ssl=context)
        return caller

    async def ask(self, code: int, ext: Mapping[str, str], body: bytes, timeout_s: float) -> Reply:
        """Sends a request and waits for its answer. Raises BadCommand for one that is too large,
        ConnectionError, TimeoutError."""
        self.check()
        opaque = next(self._numbers)
        header = headers.RemotingHeader(code, opaque, ext=ext)
        if self._credentials is not None:
            header = signed(self._credentials, header, body)
        head = frame_reader.frame_head(header, len(body))
        coming: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[opaque] = coming
        try:
            assert self._transport is not None
            self._transport.write(head + body)
            async with asyncio.timeout(timeout_s):
                return await coming
        finally:
            del self._waiting[opaque]

    @property
    def is_of_this_machine(self) -> bool:
        """Whether the peer has the address from which this end has connected."""
        assert self._transport is not None
        own, peer = (self._transport.get_extra_info(one) for one in ("sockname", "peername"))
        return bool(own and peer and own[0] == peer[0])

    def check(self) -> None:
        """Raises ConnectionResetError when the connection has ended."""
        if self.lost.done():
            raise ConnectionResetError(self.lost.result())

    def close(self) -> None:
        """Ends the connection; what is unsent is dropped."""
        if self._transport is not None:
            self._transport.abort()

    # Of asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._end(str(error) if error else "the connection was closed")

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._reader.room()

    def buffer_updated(self, nbytes: int) -> None:
        """Of asyncio: takes the replies that are whole."""
        try:
            for header, body in self._reader.received(nbytes):
                coming = self._waiting.get(header.opaque) if header.is_answer else None
                if coming is not None and not coming.done():
                    found = Reply(header.code, header.ext, bytes(body), header.remark)
                    coming.set_result(found)
        except BrokenFrame as error:
            self._end(f"it sent a broken frame: {error.reason}")
            self.close()

    def _end(self, why: str) -> None:
        if not self.lost.done():
            self.lost.set_result(why)
        for coming in self._waiting.values():
            if not coming.done():
                coming.set_exception(ConnectionResetError(why))


def promoted_at(root: Path) -> int:
    """The log offset at which this store was promoted; 0: it never was. Raises StoreDamaged."""
    role = roles.load_role(root)
    return role.offset if role is not None and role.role == roles.MASTER and role.source else 0


class Refuses(NamedTuple):
    """A node that does not let this one log in."""

    why: str


class OtherMasters:
    """One for each gateway of a master that nobody elects, in the thread of its loop."""

    def __init__(
        self,
        root: Path,
        name: BrokerName,
        tls: ClientTls | None = None,
        credentials: OwnCredentials | None = None,
    ) -> None:
        self._root = root
        self._own = tls, credentials
        self._name = name
        self._seen: dict[str, run_files.OtherMaster] = {}
        """By name server."""
        self._noted = run_files.read_other_master(root)

    def note(self, where: str, other: run_files.OtherMaster | None) -> None:
        """What was found there now. One that leads is believed until the node starts again: it
        has messages that this one lacks."""
        if other is not None:
            self._seen[where] = other
        else:
            self._seen.pop(where, None)
        if self._noted is not None and self._noted.leads:
            return
        found = max(self._seen.values(), key=lambda one: one.leads, default=None)
        if found == self._noted:
            return
        if found is None:
            self._noted = None
            run_files.forget_other_master(self._root)
            log.info("no other master runs under this one's name any more")
            return
        with disk.if_room():  # else it is told at the next look
            run_files.write_other_master(self._root, found)
            self._noted = found
        extra = fields(
            other=found.address, own=self._name.announced, why=found, hint=run_files.STEP
        )
        if found.leads:
            log.error("takes no messages: another master leads", extra=extra)
        else:
            log.warning("another master runs under this one's name", extra=extra)

    async def at(self, caller: RemotingCaller, wait_s: float) -> str:
        """901: which other master a name server has; empty without one, or where it does not say.
        Raises OSError."""
        asked = {"clusterName": self._name.cluster, "brokerName": self._name.broker}
        reply = await caller.ask(RequestCode.GET_BROKER_MEMBER_GROUP, asked, b"", wait_s)
        if reply.code != ResponseCode.SUCCESS:
            return ""
        with suppress(ValueError, KeyError, TypeError, AttributeError, RecursionError, MqError):
            found = java_json.parse_java_json(str(reply.body, "utf-8", "replace"))
            found = str(found["brokerMemberGroup"]["brokerAddrs"].get(str(MASTER), ""))
            return "" if found == self._name.announced else found
        return ""

    async def watch_old_master(self, own_port: int) -> None:
        """Looks, without end, where the old master was. Returns for a node that had none."""
        role = roles.load_role(self._root)
        if role is None or role.role != roles.MASTER or not role.source:
            return
        place = run_files.read_follow_state(self._root).remoting
        if not place and "/" not in role.source:
            place = addresses.remoting_beside(role.source)
        reported = ""
        while place:
            found = await self.lives(place, own_port)
            if isinstance(found, Refuses):
                # It may be a replica by now: no other master is reported that may not be one.
                if found.why != reported:
                    extra = fields(old_master=place, why=found.why)
                    log.warning("not known whether the old master is still one", extra=extra)
            else:
                self.note(OLD_MASTER, run_files.OtherMaster(place, False) if found else None)
            reported = found.why if isinstance(found, Refuses) else ""
            await asyncio.sleep(LOOK_S)

    async def lives(self, place: str, own_port: int = 0) -> "bool | Refuses":
        """Whether a master takes requests there, and not this node at `own_port`: the address may
        have come here. A name server has a machine that was lost for two minutes."""
        try:
            host, port = addresses.split_place(place)
            with closing(await RemotingCaller.connect(host, port, ANSWER_S, *self._own)) as caller:
                if port == own_port and caller.is_of_this_machine:
                    return False
                reply = await caller.ask(RequestCode.GET_BROKER_CONFIG, {}, b"", ANSWER_S)
        except (OSError, ValueError, OverflowError, TlsRefused):
            return False  # also for an address that none can be: a name server says what it heard
        if reply.code == ResponseCode.NO_PERMISSION:
            return Refuses(
                f"it does not let this node log in: {(reply.remark or '')[:200]}; {NOT_KNOWN_THERE}"
            )
        lines = str(reply.body, "utf-8", "replace").splitlines()
        settings = {one.partition("=")[0].strip(): one.partition("=")[2].strip() for one in lines}
        is_slave = settings.get("brokerRole") == "SLAVE" or settings.get("brokerId") != str(MASTER)
        return reply.code == ResponseCode.SUCCESS and not is_slave


class Pace(NamedTuple):
    """How often a node registers, and how long it waits. Tests are in more of a hurry."""

    period_s: float = 30.0
    """Between two registrations: a name server forgets a broker after 120 s without one."""
    answer_s: float = 10.0
    """How long a connection or an answer may take."""
    pause_s_min: float = 1.0
    """After a failure. A name server may take as long to forget a connection that has ended: it
    would forget a new registration with it."""
    pause_s_max: float = 15.0
    """After many failures; each one doubles the pause. With it a name server that comes back has
    the node within `period_s`."""
    spacing_s: float = 0.1
    """Between two registrations of topics that change one after the other."""
    look_s: float = 1.0
    """Between two looks whether others have changed topics."""
    leave_s: float = 2.0
    """How long an orderly stop waits for all name servers."""


USUAL_PACE = Pace()


class Registration:
    """What each name server gets."""

    def __init__(self, name: BrokerName, topics: Topics) -> None:
        self.broker: Mapping[str, str] = {
            "brokerName": name.broker,
            "brokerAddr": name.announced,
            "clusterName": name.cluster,
            "brokerId": str(name.broker_id),
        }
        """The fields that say which broker it is: all of 104."""
        # Without a port for slaves: Java's reads a host and a port. At the node's own its first
        # bytes are a broken frame: it loses the connection, and tries again 5 s later.
        self._ha = name.ha or name.announced
        self._topics = topics
        self._epoch = name.epoch
        self._body = b""
        self._names: frozenset[str] = frozenset()
        self.is_old = True
        """Whether the topics have changed since they were written."""
        self._writing = asyncio.Lock()

    async def request(self) -> tuple[Mapping[str, str], bytes, frozenset[str]]:
        """103 with all topics, always: its fields, its body, and the names of the topics in it. Of
        single topics a name server could take the others for removed
        (deleteTopicWithBrokerRegistration), and it refuses a broker that begins with one."""
        async with self._writing:
            if self.is_old:
                self.is_old = False
                topics = self._topics.announced()
                version = topics.data_version._replace(state_version=self._epoch)
                topics = topics._replace(data_version=version)
                self._names = frozenset(topics.topic_config_table)
                body = bodies.RegisterBrokerBody(topics)
                # 15 us a topic: in a thread, so that a thousand of them delay nobody's messages.
                self._body = await asyncio.to_thread(java_json.write_body, body, standard=True)
        ext = {
            **self.broker,
            "haServerAddr": self._ha,
            "enableActingMaster": "false",
            "compressed": "false",
            "bodyCrc32": str(crc32(self._body) & CRC_MASK),
        }
        return ext, self._body, self._names


@dataclass(eq=False)
class Registrar:
    """Keeps a node registered at all of its name servers, HOST:PORT each. One for each gateway;
    without any it does nothing. `_others` hears which other masters they have."""

    _servers: Iterable[str]
    _name: BrokerName
    _topics: Topics
    _pace: Pace = USUAL_PACE
    _others: OtherMasters | None = None
    _tls: ClientTls | None = None
    _credentials: OwnCredentials | None = None
    follows: bool = False
    """Whether the node is a replica; its owner sets it."""
    _tasks: list[asyncio.Task[None]] = field(default_factory=list)
    _can_read: bool = True

    def __post_init__(self) -> None:
        self._registration = Registration(self._name, self._topics)
        self._links = [
            NameServerLink(
                one, self._registration, self._pace, self._others, self._tls, self._credentials
            )
            for one in self._servers
        ]

    def follow(self, heard: Callable[[run_files.MasterPlace], None]) -> None:
        """The node is a replica. `heard` gets where the master of its name is, with each answer
        that says so."""
        self.follows = True
        for link in self._links:
            link.heard = heard

    def start(self, fail: Callable[[BaseException], None]) -> None:
        """Begins to register. `fail` is called with an unexpected error."""
        if not self._links:
            return
        self._topics.when_changed = self._topics_changed
        self._warn()
        for coming in (self._look(), *(link.run() for link in self._links)):
            task = asyncio.ensure_future(coming)
            task.add_done_callback(partial(pass_on_error, fail=fail))
            self._tasks.append(task)

    async def stop(self) -> None:
        """Unregisters wherever it is connected; takes at most `leave_s`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await asyncio.gather(*(link.leave() for link in self._links))

    def _topics_changed(self) -> None:
        self._registration.is_old = True
        for link in self._links:
            link.wake()

    async def _look(self) -> None:
        """Finds changes that came past the gateway."""
        while True:
            await asyncio.sleep(self._pace.look_s)
            try:
                self._topics.look()
                self._can_read = True
            except (MqError, OSError) as error:
                if self._can_read:
                    log.warning("the topics to register cannot be read", extra=fields(why=error))
                self._can_read = False

    def _warn(self) -> None:
        """Logs what is allowed, but seldom meant."""
        announced, name = self._name.announced, self._name
        places = [link.place for link in self._links]
        remote = [one for one in places if not is_loopback(addresses.split_place(one)[0])]
        if remote and is_loopback(addresses.split_place(announced)[0]):
            log.warning(
                "other machines cannot connect to the address that is registered",
                extra=fields(address=announced, name_servers=";".join(remote)),
            )
        if name.broker_id != MASTER and not self.follows:
            log.warning(
                "the node is registered as a slave, but follows no master",
                extra=fields(broker=name.broker, broker_id=name.broker_id),
            )


@dataclass(eq=False)
class NameServerLink:
    """One name server: connected, registered, and both again after whatever happens."""

    place: str
    _registration: Registration
    _pace: Pace
    _others: OtherMasters | None
    _tls: ClientTls | None = None
    _credentials: OwnCredentials | None = None
    heard: Callable[[run_files.MasterPlace], None] = lambda place: None
    """Gets what the answer of a slave's registration says of the master."""
    is_registered: bool | None = None
    """None until the first try has ended."""
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _caller: RemotingCaller | None = None
    _known: frozenset[str] = frozenset()
    """The topics that it got over this connection."""

    def __post_init__(self) -> None:
        self._pause_s = self._pace.pause_s_min

    def wake(self) -> None:
        """Registers again soon: topics have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Keeps the node registered, without end."""
        while True:
            try:
                self._caller = await RemotingCaller.connect(
                    *addresses.split_place(self.place),
                    self._pace.answer_s,
                    self._tls,
                    self._credentials,
                )
                await self._stay(self._caller)
            except (MqError, OSError) as error:
                self._note(error)
                self._drop()
            await asyncio.sleep(self._next_pause_s())

    async def _stay(self, caller: RemotingCaller) -> None:
        """Registers now, then when it is due. Raises OSError once the connection is of no use."""
        caller.lost.add_done_callback(lambda _: self.wake())
        self._known = frozenset()
        while True:
            self._wake.clear()
            due_s = self._pace.period_s
            try:
                await self._register_and_look(caller)
            except MqError as error:
                # The connection goes on: with its end, the name server would forget the node.
                self._note(error)
                due_s = self._next_pause_s()
            else:
                self._note(None)
                self._pause_s = self._pace.pause_s_min
            await asyncio.sleep(self._pace.spacing_s)
            with suppress(TimeoutError):
                async with asyncio.timeout(due_s):
                    await self._wake.wait()
            caller.check()

    async def _register_and_look(self, caller: RemotingCaller) -> None:
        """Registers, and looks for another master: one that is there before comes in turn with this
        one, and one that stays is newer. Raises as `_register`."""
        others, wait_s = self._others, self._pace.answer_s
        if others is None:
            await self._register(caller)
            return
        seen = None
        for _ in range(REGISTERED_TWICE):  # another one may come just in between, once
            before = await others.at(caller, wait_s)
            await self._register(caller)
            after = await others.at(caller, wait_s) if before else ""
            if before:
                seen = run_files.OtherMaster(
                    # Of one that refuses to say more, the name server has said that it is one.
                    before,
                    leads=after == before and bool(await others.lives(before)),
                )
            if not after:
                break
        others.note(self.place, seen)

    async def _register(self, caller: RemotingCaller) -> None:
        """103. Raises MqError for a refusal, OSError."""
        ext, body, topics = await self._registration.request()
        reply = await caller.ask(RequestCode.REGISTER_BROKER, ext, body, self._pace.answer_s)
        if reply.code != ResponseCode.SUCCESS:
            why = (reply.remark or "")[:200]
            raise RefusedError(f"its reply is code {reply.code}: {why}")
        place = run_files.MasterPlace(
            reply.ext.get("masterAddr", ""), reply.ext.get("haServerAddr", "")
        )
        if place.remoting and place.ha:
            self.heard(place)
        for topic in self._known - topics:
            await self._withdraw(caller, topic)
        self._known = topics

    async def _withdraw(self, caller: RemotingCaller, topic: str) -> None:
        """216 for a topic that is gone, which would keep its route: topics absent from a 103 stay.
        Only when no other broker has the topic, as 216 takes it from all of a cluster."""
        broker, wait_s = self._registration.broker, self._pace.answer_s
        asked = {"topic": topic, "acceptStandardJsonOnly": "true"}
        reply = await caller.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked, b"", wait_s)
        if reply.code != ResponseCode.SUCCESS:
            return
        route = java_json.read_body(bodies.TopicRouteData, reply.body)
        if {one.broker_name for one in route.queue_datas} == {broker["brokerName"]}:
            gone = {"topic": topic, "clusterName": broker["clusterName"]}
            await caller.ask(RequestCode.DELETE_TOPIC_IN_NAMESRV, gone, b"", wait_s)

    async def leave(self) -> None:
        """104, then the end of the connection. Call it when `run` has ended."""
        if self._caller is not None:
            code, broker = RequestCode.UNREGISTER_BROKER, self._registration.broker
            with suppress(MqError, OSError):
                await self._caller.ask(code, broker, b"", self._pace.leave_s)
        self._drop()

    def _drop(self) -> None:
        if self._caller is not None:
            self._caller.close()
            self._caller = None

    def _next_pause_s(self) -> float:
        pause_s = self._pause_s
        self._pause_s = min(2 * pause_s, self._pace.pause_s_max)
        return pause_s

    def _note(self, error: MqError | OSError | None) -> None:
        """Logs a change of state: not each try."""
        is_registered = error is None
        if is_registered == self.is_registered:
            return
        self.is_registered = is_registered
        if error is None:
            log.info("registered at a name server", extra=fields(name_server=self.place))
        else:
            why = str(error) or f"no answer within {self._pace.answer_s:.0f} s"
            log.warning(
                "not registered at a name server", extra=fields(name_server=self.place, why=why)
            )
