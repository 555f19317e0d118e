"""A replica whose disk is as full as the file `percent` beside its folder says.

Run it as the module `replication.replica.loop`.
"""

from pathlib import Path

from keelog.replication.replica.loop import main
from node.runtime import shortage
from node.runtime.process import leave


def used_percent(path: Path) -> int:
    """In place of what the disk says. `path` is a folder of the store."""
    return int((path.parent.parent / "percent").read_text())


if __name__ == "__main__":
    shortage.used_percent = used_percent
    leave(main())
