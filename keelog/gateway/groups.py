"""The consumer groups of a node: `config/subscriptionGroup.json` (SubscriptionGroupManager).

The gateway alone writes the file, in a thread, and keeps entries and fields that it does not know.
A group that a client names exists from then on, unless `auto_create_subscription_group` is off.
"""

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from keelog.gateway.connection import Reply, Request
from keelog.gateway.guard import check_needs
from keelog.gateway.settings import LiveSettings
from node.runtime.event_log import fields
from node.runtime.process import now_ms
from node.store.config.config_table import ConfigTable
from protocol.access.remoting_needs import group_settings_need
from protocol.errors import NotAllowed
from protocol.names import SUBSCRIPTION_GROUPS_FILE, SYSTEM_GROUP_PREFIX, is_group_name
from protocol.remoting import bodies
from protocol.remoting.codes import BadCommand
from protocol.remoting.java_json import read_body, write_body

log = logging.getLogger("keelog.gateway")

KNOWN_GROUPS_MAX = 20_000
"""In the file. Further ones are refused; those that are there already stay."""
CONFIG_BYTES_MAX = 16 * 1024
"""The settings of one group, as a tool sends them."""
CONFIGS_BYTES_MAX = 512 * 1024
"""The settings of several groups."""
_NEW_ENTRY: dict[str, Any] = json.loads(
    write_body(bodies.SubscriptionGroupConfig(""), standard=True)
)
del _NEW_ENTRY["groupName"]


class GroupSettings(NamedTuple):
    """What the node heeds of a group's settings."""

    may_consume: bool = True
    may_broadcast: bool = True
    notifies: bool = True
    """Whether its members hear of others that come and go."""
    retry_queues: int = 1
    retry_times_max: int = 16
    broker_id: int = 0
    """From whom its consumers shall pull, where the node's slaves may be read."""
    slow_broker_id: int = 1
    """As `broker_id`, for those that read old messages."""


class Groups:
    """The table in memory, in the thread of the loop. `has_locks`: whether a group has queues
    locked, as orderly groups have."""

    def __init__(
        self,
        root: Path,
        live: LiveSettings,
        has_locks: Callable[[str], bool],
        is_owner: bool = True,
    ) -> None:
        """`is_owner`: the gateway writes the file. Else it follows the file of a replica, and what
        it creates is gone at its end. Raises StoreDamaged."""
        self.has_locks = has_locks
        self._is_owner = is_owner
        self._live = live
        self._file = ConfigTable(root / SUBSCRIPTION_GROUPS_FILE, "subscriptionGroupTable", now_ms)
        self._file.check_readable()
        self._settings: dict[str, GroupSettings] = {}

    def find(self, name: str) -> GroupSettings | None:
        """The settings of a group, which is created if it may be; None where it may not. Raises
        NotAllowed for a name that no group has, and for one group too many."""
        if (found := self._settings.get(name)) is not None:
            return found
        entry = self._file.entries.get(name)
        if entry is None:
            may_create = self._live.now.auto_create_subscription_group
            if not may_create and not name.startswith(SYSTEM_GROUP_PREFIX):
                return None
            entry = self._create(name)
        found = self._settings[name] = _settings(entry)
        return found

    def settings(self, name: str) -> GroupSettings:
        """As `find`, with the usual settings for an unknown group."""
        return self.find(name) or GroupSettings()

    def names(self) -> list[str]:
        return sorted(self._file.entries)

    def has(self, name: str) -> bool:
        """Whether there is such a group. It is not created."""
        return name in self._file.entries

    def entry(self, name: str) -> Mapping[str, Any] | None:
        """All settings of a group as the file has them, also those that the node does not know."""
        found = self._file.entries.get(name)
        return None if found is None else {**_NEW_ENTRY, **found}

    @property
    def version(self) -> Mapping[str, int]:
        """How new the table is: RocketMQ's DataVersion."""
        return self._file.version

    def remove(self, name: str) -> None:
        """Removes a group's settings, where it has any."""
        if self._file.entries.pop(name, None) is not None:
            self._settings.pop(name, None)
            self._file.touch()
            log.info("group removed", extra=fields(group=name))

    def configure(self, request: Request) -> Reply:
        """200: makes a group, or changes it; fields that are not named get their usual values.
        Raises NotAllowed, BadCommand, as SubscriptionGroupManager#updateSubscriptionGroupConfig."""
        if len(request.body) > CONFIG_BYTES_MAX:
            raise BadCommand(f"settings of {len(request.body)} bytes", f"send {CONFIG_BYTES_MAX}")
        wanted = read_body(bodies.SubscriptionGroupConfig, request.body)
        self._check_may(request, wanted)
        self._configure(wanted)
        return Reply()

    def configure_all(self, request: Request) -> Reply:
        """225: as 200, for several groups; those before one that is refused are made."""
        if len(request.body) > CONFIGS_BYTES_MAX:
            raise BadCommand(f"settings of {len(request.body)} bytes", f"send {CONFIGS_BYTES_MAX}")
        groups = read_body(bodies.GroupConfigs, request.body).group_config_list
        for wanted in groups:
            self._check_may(request, wanted)
        for wanted in groups:
            self._configure(wanted)
        return Reply()

    def _check_may(self, request: Request, wanted: bodies.SubscriptionGroupConfig) -> None:
        """Raises NotAllowed."""
        is_new = not self.has(wanted.group_name)
        check_needs(request, (group_settings_need(wanted.group_name, is_new=is_new),))

    def _configure(self, wanted: bodies.SubscriptionGroupConfig) -> None:
        name = wanted.group_name
        old = self._file.entries.get(name, _NEW_ENTRY)
        attributes = _changed(old.get("attributes") or {}, wanted.attributes)
        if name not in self._file.entries:
            self._create(name)
        # As Java writes it, and without what is null; fields that we do not know stay.
        given = json.loads(write_body(wanted._replace(attributes=attributes), standard=True))
        self._file.entries[name] = {**old, **given}
        self._settings.pop(name, None)
        self._file.touch()
        log.info("group configured", extra=fields(group=name))

    def _create(self, name: str) -> dict[str, Any]:
        if not is_group_name(name):
            raise NotAllowed(f"{name[:80]!a} cannot name a group", "use a-z A-Z 0-9 _ - % |")
        if len(self._file.entries) >= KNOWN_GROUPS_MAX:
            raise NotAllowed(f"{KNOWN_GROUPS_MAX} groups are there already")
        entry = self._file.entries[name] = {**_NEW_ENTRY, "groupName": name}
        self._file.touch()
        log.info("group created", extra=fields(group=name))
        return entry

    def turn(self, now: float) -> None:
        """Saves when that is due; who does not own the file reads it where it has changed."""
        if self._is_owner:
            self._file.turn(now)
        elif self._file.reload():
            self._settings.clear()

    def close(self) -> None:
        self._file.close(keeps=self._is_owner)


def _changed(attributes: Mapping[str, Any], changes: Mapping[str, str]) -> dict[str, Any]:
    """Attributes after changes, `+name` to a value or `-name`. Raises BadCommand."""
    found = dict(attributes)
    for sign, value in changes.items():
        name = sign[1:]
        if not name or sign[0] not in "+-":
            raise BadCommand(f"{sign[:40]!a} changes no attribute", "write +name or -name")
        if sign[0] == "+":
            found[name] = value
        else:
            found.pop(name, None)
    return found


def _settings(entry: dict[str, Any]) -> GroupSettings:
    def number(name: str, default: int) -> int:
        found = entry.get(name)
        return found if type(found) is int else default

    return GroupSettings(
        may_consume=entry.get("consumeEnable") is not False,
        may_broadcast=entry.get("consumeBroadcastEnable") is not False,
        notifies=entry.get("notifyConsumerIdsChangedEnable") is not False,
        retry_queues=number("retryQueueNums", 1),
        retry_times_max=number("retryMaxTimes", 16),
        broker_id=number("brokerId", 0),
        slow_broker_id=number("whichBrokerWhenConsumeSlowly", 1),
    )
