"""Groups that tools look at and remove: 201, 207, 352."""

from typing import Any

from keelog.client import groups as client_groups
from keelog.client.core import ClientCore
from keelog.client.event_loop import run
from keelog.gateway.admin.resets import WaitingResets
from keelog.gateway.connection import Reply, Request
from keelog.gateway.groups import Groups
from protocol.remoting.codes import ResponseCode
from protocol.remoting.header_fields import DeleteGroupHeader, PagedGroupsHeader, request_fields
from protocol.remoting.java_json import write_body


class GroupChanges:
    """One for each gateway, in the thread of its loop."""

    def __init__(self, core: ClientCore, groups: Groups, resets: WaitingResets) -> None:
        self._core = core
        self._groups = groups
        self._resets = resets

    def configure_all(self, request: Request) -> Reply:
        """225: as 200, for several groups."""
        return self._groups.configure_all(request)

    def config(self, request: Request) -> Reply:
        """352: the settings of one group."""
        found = self._groups.entry(request_fields(request.header).group)
        if found is None:
            code = ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST
            return Reply(code, remark="No group in this broker")
        return Reply(body=write_body(found, standard=True))

    def configs(self, request: Request) -> Reply:
        """201: the settings of all groups, or of a page of them."""
        wanted: PagedGroupsHeader = request_fields(request.header)
        names = self._groups.names()
        first = max(0, wanted.group_seq)
        page = names[first : first + max(0, wanted.max_group_num)]
        body: dict[str, Any] = {
            "dataVersion": self._groups.version,
            "forbiddenTable": {},
            "subscriptionGroupTable": {name: self._groups.entry(name) for name in page},
        }
        ext = {"totalGroupNum": str(len(names))}
        return Reply(ext=ext, body=write_body(body, standard=True))

    async def delete(self, request: Request) -> Reply:
        """207: removes a group's settings, and if asked for its offsets."""
        wanted: DeleteGroupHeader = request_fields(request.header)
        self._groups.remove(wanted.group_name)
        self._resets.forget_group(wanted.group_name)
        if wanted.clean_offset:
            deadline = self._core.deadline(None)
            await run(self._core, client_groups.delete_group(wanted.group_name, deadline))
        return Reply()
