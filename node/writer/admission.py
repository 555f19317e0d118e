"""What the node itself has against a request now, whatever the request is: nothing is stored."""

from node.runtime.settings import Settings
from node.writer.group_commit import GroupCommit
from node.writer.log.transient_store_pool import TransientStorePool
from node.writer.retention import Retention
from protocol.errors import NodeBusy, ServiceNotAvailable


def check_runs(is_stopping: bool) -> None:
    """Raises ServiceNotAvailable while the node stops."""
    if is_stopping:
        raise ServiceNotAvailable("the node is stopping", "send it again when it is back")


def check_append(is_stopping: bool, waiting: GroupCommit, retention: Retention) -> None:
    """Raises ServiceNotAvailable, NodeBusy while appends are not taken."""
    check_runs(is_stopping)
    if waiting.is_full:
        raise NodeBusy(f"{len(waiting)} requests wait for the disk", "send it again later")
    retention.check_room()


def check_pool(pool: TransientStorePool, settings: Settings, size: int) -> None:
    """Raises NodeBusy where a full pool is to be told, and not waited for."""
    if settings.fast_fail_if_no_buffer_in_store_pool and not pool.fits(size):
        reason = f"transientStorePool: {pool.used_bytes} bytes wait for a commit"
        raise NodeBusy(reason, "send it again later")
