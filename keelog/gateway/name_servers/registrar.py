"""Registration at name servers, so that RocketMQ's clients find the node among others.

A name server forgets a broker as soon as its connection ends, so one stays open to each of them.
They know nothing of each other: what happens to one of them does not matter to the rest.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple
from zlib import crc32

from keelog.gateway.name_servers.caller import RemotingCaller
from keelog.gateway.name_servers.other_masters import OtherMasters
from keelog.gateway.names import MASTER, BrokerName
from keelog.gateway.topics import Topics
from node.runtime.event_log import fields
from node.runtime.run_files import MasterPlace, OtherMaster
from protocol.addresses import is_loopback
from protocol.errors import MqError, RefusedError
from protocol.remoting.bodies import RegisterBrokerBody, TopicRouteData
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.java_json import read_body, write_body

log = logging.getLogger("keelog.gateway")

CRC_MASK = 0x7FFFFFFF
"""Java's checksum of a body is a positive number of 32 bits."""


REGISTERED_TWICE = 2
"""Registrations without success, after which another master counts as the newer one."""


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


class RegistrationRefused(RefusedError):
    """A name server has answered, but not with success."""


class RegisterRequest(NamedTuple):
    """103: its fields, its body, and the names of the topics in it."""

    ext: Mapping[str, str]
    body: bytes
    topics: frozenset[str]


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
        self._is_old = True
        self._writing = asyncio.Lock()

    def forget(self) -> None:
        """The topics have changed."""
        self._is_old = True

    async def request(self) -> RegisterRequest:
        """103 with all topics, always.

        Of single topics a name server could take the others for removed
        (deleteTopicWithBrokerRegistration), and it refuses a broker that begins with one.
        """
        async with self._writing:
            if self._is_old:
                self._is_old = False
                topics = self._topics.announced()
                version = topics.data_version._replace(state_version=self._epoch)
                topics = topics._replace(data_version=version)
                body, self._names = RegisterBrokerBody(topics), frozenset(topics.topic_config_table)
                # 15 us a topic: in a thread, so that a thousand of them delay nobody's messages.
                self._body = await asyncio.to_thread(write_body, body, standard=True)
        ext = {
            **self.broker,
            "haServerAddr": self._ha,
            "enableActingMaster": "false",
            "compressed": "false",
            "bodyCrc32": str(crc32(self._body) & CRC_MASK),
        }
        return RegisterRequest(ext, self._body, self._names)


class Registrar:
    """Keeps a node registered at all of its name servers. One for each gateway."""

    def __init__(
        self,
        servers: Iterable[str],
        name: BrokerName,
        topics: Topics,
        pace: Pace | None = None,
        others: OtherMasters | None = None,
    ) -> None:
        """`servers` are HOST:PORT each; without any it does nothing. `others` hears which other
        masters they have."""
        self._pace = pace or Pace()
        self._name = name
        self._topics = topics
        self._registration = Registration(name, topics)
        self._links = [
            NameServerLink(one, self._registration, self._pace, others) for one in servers
        ]
        self.follows = False
        """Whether the node is a replica; its owner sets it."""
        self._tasks: list[asyncio.Task[None]] = []
        self._can_read = True

    def follow(self, heard: Callable[[MasterPlace], None]) -> None:
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
            task.add_done_callback(lambda ended: _check(ended, fail))
            self._tasks.append(task)

    async def stop(self) -> None:
        """Unregisters wherever it is connected; takes at most `leave_s`."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks.clear()
        await asyncio.gather(*(link.leave() for link in self._links))

    def _topics_changed(self) -> None:
        self._registration.forget()
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
        far = [link.place for link in self._links if not is_loopback(_host_and_port(link.place)[0])]
        if far and is_loopback(_host_and_port(announced)[0]):
            log.warning(
                "other machines cannot connect to the address that is registered",
                extra=fields(address=announced, name_servers=";".join(far)),
            )
        if name.broker_id != MASTER and not self.follows:
            log.warning(
                "the node is registered as a slave, but follows no master",
                extra=fields(broker=name.broker, broker_id=name.broker_id),
            )


class NameServerLink:
    """One name server: connected, registered, and both again after whatever happens."""

    def __init__(
        self, place: str, registration: Registration, pace: Pace, others: OtherMasters | None
    ) -> None:
        self.place = place
        self.is_registered: bool | None = None
        """None until the first try has ended."""
        self._registration = registration
        self._pace = pace
        self._others = others
        self._pause_s = pace.pause_s_min
        self._wake = asyncio.Event()
        self._caller: RemotingCaller | None = None
        self._known: frozenset[str] = frozenset()
        """The topics that it got over this connection."""
        self.heard: Callable[[MasterPlace], None] = lambda place: None
        """Gets what the answer of a slave's registration says of the master."""

    def wake(self) -> None:
        """Registers again soon: topics have changed."""
        self._wake.set()

    async def run(self) -> None:
        """Keeps the node registered, without end."""
        while True:
            try:
                self._caller = await RemotingCaller.connect(
                    *_host_and_port(self.place), self._pace.answer_s
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
                seen = OtherMaster(before, leads=after == before and await others.lives(before))
            if not after:
                break
        others.note(self.place, seen)

    async def _register(self, caller: RemotingCaller) -> None:
        """103. Raises MqError for a refusal, OSError."""
        ext, body, topics = await self._registration.request()
        reply = await caller.ask(RequestCode.REGISTER_BROKER, ext, body, self._pace.answer_s)
        if reply.code != ResponseCode.SUCCESS:
            raise RegistrationRefused(f"its reply is code {reply.code}: {reply.remark[:200]}")
        place = MasterPlace(reply.ext.get("masterAddr", ""), reply.ext.get("haServerAddr", ""))
        if place.remoting and place.ha:
            self.heard(place)
        for topic in self._known - topics:
            await self._withdraw(caller, topic)
        self._known = topics

    async def _withdraw(self, caller: RemotingCaller, topic: str) -> None:
        """216 for a topic that is gone, which would keep its route: topics absent from a 103 stay.

        Only when no other broker has the topic, as 216 takes it from all of a cluster.
        """
        broker, wait_s = self._registration.broker, self._pace.answer_s
        asked = {"topic": topic, "acceptStandardJsonOnly": "true"}
        reply = await caller.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked, b"", wait_s)
        if reply.code != ResponseCode.SUCCESS:
            return
        route = read_body(TopicRouteData, reply.body)
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


def _host_and_port(place: str) -> tuple[str, int]:
    host, _, port = place.rpartition(":")
    return host.strip("[]"), int(port)


def _check(ended: asyncio.Task[None], fail: Callable[[BaseException], None]) -> None:
    """Passes on an unexpected error of a task: asyncio would log it and go on."""
    if not ended.cancelled() and (error := ended.exception()) is not None:
        fail(error)
