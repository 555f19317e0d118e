"""Why a node stops following its master: each of these is for people to decide.

Nothing is changed then. The node goes on serving what it has, and looks again when it is started
again.
"""

from protocol.errors import RefusedError

REWIND = "keelog replica rewind DIR --to OFFSET shows what would be cut"


class FollowStopped(RefusedError):
    """The node cannot follow this master as both logs are."""


class MasterShorter(FollowStopped):
    """The master's log ends before ours does: it lost a part that this node has."""


class MasterTrimmed(FollowStopped):
    """The master has deleted what follows the end of our log."""


class OtherBytes(FollowStopped):
    """The master's log has other bytes than ours at the same offset."""


class OtherSegments(FollowStopped):
    """The master's segments have another length than ours."""


class WrongRecord(FollowStopped):
    """The master sent something else than a whole record of its place."""
