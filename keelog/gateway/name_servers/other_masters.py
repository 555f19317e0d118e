"""Looks whether another master runs under this one's name: at each name server, and where the
master was that this node followed before it was promoted.

A name server lets no master take the place of one with a newer state version (RouteInfoManager
#registerBroker). That of a promoted node is where its log began to be its own: the last one to be
promoted stays.
"""

import asyncio
import logging
from contextlib import closing, suppress
from pathlib import Path

from keelog.gateway.name_servers.caller import RemotingCaller
from keelog.gateway.names import MASTER, BrokerName
from node.runtime import disk
from node.runtime.addresses import remoting_beside, split_place
from node.runtime.event_log import fields
from node.runtime.run_files import (
    STEP,
    OtherMaster,
    forget_other_master,
    read_follow_state,
    read_other_master,
    write_other_master,
)
from node.store.identity.roles import MASTER as MASTER_ROLE
from node.store.identity.roles import load_role
from protocol.errors import MqError
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.java_json import parse_java_json

log = logging.getLogger("keelog.gateway")

LOOK_S = 10.0
"""Between two looks at the address of the old master."""
ANSWER_S = 3.0
OLD_MASTER = ""
"""In place of a name server: the address of the old master itself."""


def promoted_at(root: Path) -> int:
    """The log offset at which this store was promoted; 0: it never was. Raises StoreDamaged."""
    role = load_role(root)
    return role.offset if role is not None and role.role == MASTER_ROLE and role.source else 0


class OtherMasters:
    """One for each gateway of a master that nobody elects, in the thread of its loop."""

    def __init__(self, root: Path, name: BrokerName) -> None:
        self._root = root
        self._name = name
        self._seen: dict[str, OtherMaster] = {}
        """By name server."""
        self._told = read_other_master(root)

    def note(self, where: str, other: OtherMaster | None) -> None:
        """What was found there now. One that leads is believed until the node starts again: it
        has messages that this one lacks."""
        if other is not None:
            self._seen[where] = other
        else:
            self._seen.pop(where, None)
        if self._told is not None and self._told.leads:
            return
        found = max(self._seen.values(), key=lambda one: one.leads, default=None)
        if found == self._told:
            return
        if found is None:
            self._told = None
            forget_other_master(self._root)
            log.info("no other master runs under this one's name any more")
            return
        with disk.if_room():  # else it is told at the next look
            write_other_master(self._root, found)
            self._told = found
        extra = fields(other=found.address, own=self._name.announced, why=found, hint=STEP)
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
            group = parse_java_json(reply.body.decode("utf-8", "replace"))["brokerMemberGroup"]
            found = str(group["brokerAddrs"].get(str(MASTER), ""))
            return "" if found == self._name.announced else found
        return ""

    async def watch_old_master(self, own_port: int) -> None:
        """Looks, without end, where the old master was. Returns for a node that had none."""
        role = load_role(self._root)
        if role is None or role.role != MASTER_ROLE or not role.source:
            return
        place = read_follow_state(self._root).remoting
        if not place and "/" not in role.source:
            place = remoting_beside(role.source)
        while place:
            is_there = await self.lives(place, own_port)
            self.note(OLD_MASTER, OtherMaster(place, False) if is_there else None)
            await asyncio.sleep(LOOK_S)

    async def lives(self, place: str, own_port: int = 0) -> bool:
        """Whether a master takes requests there, and not this node at `own_port`: the address may
        have come here. A name server has a machine that was lost for two minutes."""
        try:
            return await _is_a_master(place, own_port)
        except (OSError, ValueError, OverflowError):
            return False  # also for an address that none can be: a name server says what it heard


async def _is_a_master(place: str, own_port: int) -> bool:
    """As `OtherMasters.lives`. Raises OSError."""
    host, port = split_place(place)
    with closing(await RemotingCaller.connect(host, port, ANSWER_S)) as caller:
        if port == own_port and caller.is_of_this_machine:
            return False
        reply = await caller.ask(RequestCode.GET_BROKER_CONFIG, {}, b"", ANSWER_S)
    lines = reply.body.decode("utf-8", "replace").splitlines()
    settings = {line.partition("=")[0].strip(): line.partition("=")[2].strip() for line in lines}
    is_slave = settings.get("brokerRole") == "SLAVE" or settings.get("brokerId") != str(MASTER)
    return reply.code == ResponseCode.SUCCESS and not is_slave
