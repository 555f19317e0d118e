"""Gets a store the id by which controllers know it, and says where its node is."""

import logging
from pathlib import Path
from typing import NamedTuple

from keelog.replication.keeper.controllers import Controllers
from node.runtime.event_log import fields
from node.runtime.process import now_ms
from node.store.identity.roles import (
    BrokerIdentity,
    forget_asked_identity,
    load_asked_identity,
    load_identity,
    save_asked_identity,
    save_identity,
)
from protocol.errors import RefusedError, ServiceNotAvailable
from protocol.remoting.codes import ResponseCode
from protocol.remoting.controller import ControllerCode, ControllerReply

log = logging.getLogger("keelog.keeper")


class NodeOfGroup(NamedTuple):
    """A node of a group. `place`: where it takes requests, as others reach it."""

    cluster: str
    broker: str
    place: str


class OtherIdentity(RefusedError):
    """The store's id is one of another group, or the controllers do not know it."""


def register(root: Path, controllers: Controllers, member: NodeOfGroup) -> int:
    """Returns the id of the store, a new one if it has none yet.

    Raises OtherIdentity, StoreDamaged; ControllersAway and ServiceNotAvailable where a later try
    may do better.
    """
    identity = load_identity(root)
    if identity is None:
        identity = _apply(root, controllers, member)
    _check_group(root, identity, member)
    ext = {
        "clusterName": member.cluster,
        "brokerName": member.broker,
        "brokerId": str(identity.broker_id),
        "brokerAddress": member.place,
        "invokeTime": str(now_ms()),
    }
    answer = controllers.ask(ControllerCode.REGISTER_BROKER, ext)
    if answer.code == ControllerReply.BROKER_NEED_TO_BE_REGISTERED:
        raise OtherIdentity(
            f"the controllers know no node {identity.broker_id} of {member.broker}, which is the"
            f" id of this store: {answer.remark[:200]}",
            "did they lose their data? then move brokerIdentity out of the folder: the store gets"
            " a new id",
        )
    if answer.code != ResponseCode.SUCCESS:
        raise ServiceNotAvailable(f"registration: code {answer.code}: {answer.remark[:200]}")
    log.info("registered at the controllers", extra=fields(id=identity.broker_id, **_said(member)))
    return identity.broker_id


def _apply(root: Path, controllers: Controllers, member: NodeOfGroup) -> BrokerIdentity:
    asked = load_asked_identity(root)
    group = {"clusterName": member.cluster, "brokerName": member.broker}
    if asked is None:
        answer = controllers.ask(ControllerCode.GET_NEXT_BROKER_ID, group)
        text = answer.ext.get("nextBrokerId", "")
        if answer.code != ResponseCode.SUCCESS or not text.isdigit():
            raise ServiceNotAvailable(f"no id was given: code {answer.code}: {answer.remark[:200]}")
        code = f"{member.place};{now_ms()}"
        asked = BrokerIdentity(member.cluster, member.broker, int(text), code)
        save_asked_identity(root, asked)
    _check_group(root, asked, member)
    ext = {
        **group,
        "appliedBrokerId": str(asked.broker_id),
        "registerCheckCode": asked.check_code,
    }
    answer = controllers.ask(ControllerCode.APPLY_BROKER_ID, ext)
    if answer.code != ResponseCode.SUCCESS:
        if answer.code == ControllerReply.BROKER_ID_INVALID:
            forget_asked_identity(root)  # another node was faster
        raise ServiceNotAvailable(f"id {asked.broker_id} was not given: {answer.remark[:200]}")
    save_identity(root, asked)
    return asked


def _check_group(root: Path, identity: BrokerIdentity, member: NodeOfGroup) -> None:
    if (identity.cluster, identity.broker) != (member.cluster, member.broker):
        raise OtherIdentity(
            f"the store {root} is node {identity.broker_id} of {identity.cluster}/"
            f"{identity.broker}, not of {member.cluster}/{member.broker}",
            "name its group with --cluster and --broker-name",
        )


def _said(member: NodeOfGroup) -> dict[str, object]:
    return {"cluster": member.cluster, "broker": member.broker, "at": member.place}
