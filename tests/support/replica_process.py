"""A real replica process on a folder."""

from collections.abc import Sequence
from pathlib import Path

from node.runtime.run_files import FollowState, read_follow_state
from node.runtime.state_page import LogPage
from node.store.identity.places import create_store
from tests.support.master_log import SEGMENT_BYTES
from tests.support.node import wait_until
from tests.support.single_process import SingleProcess


class ReplicaProcess(SingleProcess):
    """A replica of the master at `place`, on the folder `root`."""

    def __init__(
        self,
        root: Path,
        place: str,
        segment_bytes: int = SEGMENT_BYTES,
        settings: Sequence[str] = (),
        module: str = "keelog.replication.replica.loop",
        local: str = "",
    ) -> None:
        self.root = root
        create_store(root)
        pairs = (
            f"follow={place}",
            # Nobody listens there: the master of the tests is asked for nothing.
            "follow_remoting=127.0.0.1:1",
            f"mapped_file_size_commit_log={segment_bytes}",
            "disk_space_warning_level_ratio=100",
            "clean_file_forcibly_enable=false",
            *settings,
        )
        words = [word for pair in pairs for word in ("-X", pair)]
        words += ["--local", local] if local else []
        super().__init__(module, root, "--bind", "tcp://127.0.0.1:0", *words)

    @property
    def state(self) -> FollowState:
        return read_follow_state(self.root)

    def wait_state(self, state: str) -> FollowState:
        wait_until(lambda: self.state.state == state, f"not {state}: {self.state}", 20)
        return self.state

    def wait_end(self, end: int) -> None:
        def is_there() -> bool:
            with LogPage.open(self.root) as page:
                return page.read().flushed >= end

        wait_until(is_there, f"the log does not reach {end}: {self.state}", 20)
