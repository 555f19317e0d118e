"""Makes a store what a controller says: the master of an epoch, or a copy of its master.

No node runs on it then. Both may be killed anywhere, and run again with the same end.
"""

from pathlib import Path
from typing import NamedTuple

from keelog.replication.replica.elected.greeting import same_up_to
from keelog.replication.roles.promotion import AcknowledgedLost, add_topics_of_log, stopped_store
from keelog.replication.roles.rewind import rewind_held
from node.runtime.run_files import read_follow_state
from node.runtime.settings import Settings
from node.store.checkpoints import clear_clean
from node.store.identity.roles import (
    MASTER,
    REPLICA,
    StoreRole,
    load_master_epochs,
    load_role,
    save_master_epochs,
    save_role,
)
from node.store.identity.store_id import ensure_id
from node.writer.recovery import carry_out, examine
from protocol.errors import RefusedError
from protocol.ha import (
    MasterEpoch,
    MasterGreeting,
    epochs_below,
    epochs_from,
    last_number,
    with_epoch,
)


class OldEpoch(RefusedError):
    """The controller elected with a number below that of the store's last master."""


class Joined(NamedTuple):
    """A store that is to follow: its end, and what was cut off after that."""

    end: int
    cut_bytes: int = 0
    cut_records: int = 0
    kept_in: str = ""


def lead(root: Path, settings: Settings, epoch: int) -> int:
    """Begins the epoch at the end of the log's last whole record, durably; returns that end.

    Raises OldEpoch, AcknowledgedLost, StoreDamaged; then nothing is changed.
    """
    with stopped_store(root) as place:
        known, role = load_master_epochs(place), load_role(place)
        if epoch < last_number(known):
            raise OldEpoch(
                f"the controller says epoch {epoch}, and epoch {last_number(known)} wrote this log",
                "controllers that lost their data? give the group another --broker-name",
            )
        found = examine(place, settings)
        acknowledged = role.acknowledged if role is not None and role.role == REPLICA else 0
        if found.end < acknowledged:
            raise AcknowledgedLost(
                f"the log ends at {found.end}, and {acknowledged} was acknowledged",
                "start another node of the group; this one may follow it then",
            )
        if epoch > last_number(known):
            # From here on others copy: what the epoch begins with has to be on the disk.
            clear_clean(place)
            carry_out(found, settings.enabled_append_prop_crc)
            # The first epoch owns all that the log has.
            start = found.end if known else found.min_offset
            kept = epochs_from(known, found.min_offset)
            save_master_epochs(place, with_epoch(kept, MasterEpoch(epoch, start)))
        if role is not None and role.role == REPLICA:
            add_topics_of_log(found, settings, read_follow_state(place).topics_end)
        ensure_id(place)  # a note of a store without an id would not count once it has one
        save_role(place, StoreRole(MASTER, "", epoch, found.end, acknowledged))
        return found.end


def follow(root: Path, settings: Settings, source: str, greeting: MasterGreeting) -> Joined:
    """Cuts what the master does not have, after it was copied to quarantine, and notes the role.

    Raises NoCommonEpoch, StoreDamaged, BadRequest where the log begins after the common point.
    """
    with stopped_store(root) as place:
        found = examine(place, settings)
        joined = Joined(found.end)
        if found.end > found.min_offset:
            point = same_up_to(place, found.end, greeting)
            if point < found.end:
                cut = rewind_held(place, point, settings, apply=True)
                joined = Joined(point, cut.bytes, cut.records, cut.kept_in)
        save_master_epochs(place, epochs_below(load_master_epochs(place), joined.end))
        ensure_id(place)
        role = load_role(place)
        acknowledged = 0 if role is None else min(role.acknowledged, joined.end)
        save_role(place, StoreRole(REPLICA, source, 0, joined.end, acknowledged))
        return joined
