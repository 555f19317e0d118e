"""The one place that opens what `load(…)` and `nodes` name, on the driver and in tasks.

On the driver `open_planned` gives a `PlannedStore`: bounds, queues, and parts' plain data. In a
task `task_files` gives the open files that the plan's paths are read through.
"""

from collections.abc import Iterable, Sequence
from pathlib import Path

from keelog.pipeline.errors import naming_conditions
from keelog.pipeline.options import SourceOptions
from keelog.pipeline.stores.access import Access, StoreAt, Way
from keelog.pipeline.stores.planned_store import FolderStore, PlannedStore
from node.runtime.settings import Settings
from node.store.condition import check_is_store
from node.store.file_cache import OpenFiles


def check_stores(stores: Iterable[StoreAt]) -> None:
    """Raises NotAStore, StoreUnreadable; no more than a look at the folders."""
    with naming_conditions():
        for at in stores:
            if at.way is Way.FILES:
                check_is_store(Path(at.root))


def open_planned(
    at: StoreAt,
    settings: Settings,
    fail_on_data_loss: bool = True,
    topics: Sequence[str] | None = None,
) -> PlannedStore:
    """A store as it is now: a folder at rest, one that a node runs, a node, or an object store.

    A context manager. `topics`: a node is asked for their queues alone. Segments that are missing
    are a DataLoss, or passed over with a warning.
    Raises NotAStore, StoreDamaged, StorePermission, StoreUnreadable, NotConnected.
    """
    if at.way is Way.NODE:
        from keelog.pipeline.stores.node_store import NodeStore

        return NodeStore(at, settings, topics)
    if at.way is Way.OBJECTS:
        from keelog.pipeline.stores.object_store import ObjectStore

        return ObjectStore(at, settings, fail_on_data_loss)
    return FolderStore(at, settings, fail_on_data_loss)


def open_selected(at: StoreAt, options: SourceOptions) -> PlannedStore:
    """`open_planned` as the options of a read say."""
    topics = options.selection.named_topics
    return open_planned(at, options.settings, options.fail_on_data_loss, topics)


def task_files(at: StoreAt) -> OpenFiles:
    """What a task reads the files of a plan through; its owner closes it.

    The process keeps connections to a node and to an object store.
    """
    if at.way is Way.FILES:
        return OpenFiles(maps=False)
    from keelog.pipeline.stores.remote_files import RangeSource, RemoteFiles

    source: RangeSource
    if at.way is Way.NODE:
        from keelog.pipeline.stores.node_store import NodeSource, client_of

        source = NodeSource(client_of(at), at.access)
    else:
        from keelog.pipeline.stores.object_store import ObjectSource

        source = ObjectSource(at)
    return RemoteFiles(source)


def resting_root(at: StoreAt) -> Path:
    """Where a job finds a store at rest; an object store is listed. Raises NotAStore."""
    if at.way is Way.FILES:
        return Path(at.root)
    from keelog.pipeline.stores.object_store import listed_root

    return listed_root(at)


def planning_files(at: StoreAt) -> OpenFiles | None:
    """What the driver of a job reads it through; None: as StoppedStore does by itself."""
    if at.way is Way.FILES:
        return None
    from keelog.pipeline.stores.object_store import ObjectSource, PlanningFiles

    return PlanningFiles(ObjectSource(at))


def job_files(root: str, access: Access) -> OpenFiles:
    """As `task_files`, for a job on a store at rest: files that are here may be mapped."""
    at = StoreAt("", root, access)
    return OpenFiles() if at.way is Way.FILES else task_files(at)
