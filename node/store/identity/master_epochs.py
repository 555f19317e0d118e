"""`epochFileCheckpoint`: the epochs of elected masters of a store's log, as RocketMQ keeps them."""

from pathlib import Path

from node.runtime import disk
from node.runtime.regular_file import SMALL_FILE_BYTES_MAX, read_bounded
from protocol.errors import BadRequest, StoreDamaged
from protocol.ha.epochs import MasterEpochs, encode_epochs, parse_epochs
from protocol.names import MASTER_EPOCHS_FILE


def load_master_epochs(root: Path) -> MasterEpochs:
    """None of them for a log that no elected master wrote. Raises StoreDamaged."""
    path = root / MASTER_EPOCHS_FILE
    try:
        return parse_epochs(read_bounded(path, SMALL_FILE_BYTES_MAX).decode("ascii", "replace"))
    except FileNotFoundError:
        return ()
    except BadRequest as error:
        hint = "move it away; the node then follows with an empty directory alone"
        raise StoreDamaged(str(path), 0, error.reason, hint) from None


def save_master_epochs(root: Path, epochs: MasterEpochs) -> None:
    """Replaces the file, durably. RocketMQ takes a file without epochs for none."""
    disk.write_atomically(root / MASTER_EPOCHS_FILE, encode_epochs(epochs))
