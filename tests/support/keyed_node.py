"""A running node with keys, and the keys of a program that may do everything there."""

from collections.abc import Sequence
from pathlib import Path

import keelog
from keelog.cli.main import run
from node.access.curve import make_server_keys, write_pair
from node.store.identity.places import create_store
from tests.support.node import RunningNode

TIMEOUT_S = 60.0


class KeyedNode(RunningNode):
    """`key` is the path of operator's secret key, `server_key` the node's public one.

    The support's own client, which has no keys, is not used.
    """

    def __init__(self, root: Path, settings: Sequence[str] = ()) -> None:
        create_store(root)
        self.server_key = make_server_keys(root).public
        self.key = root.parent / "operator.key_secret"
        public = write_pair(root.parent, "operator").public
        made = ["user", "create", "operator", "--super", "--public-key", public]
        assert run([*made, "--store", str(root), "--json"]) == 0
        settings = ["mapped_file_size_commit_log=1048576", *settings]
        super().__init__(root, settings, queue_workers=1, readers=1)

    def connected(self) -> keelog.Client:
        """A client with operator's key, over TCP."""
        return keelog.connect(self.endpoint, TIMEOUT_S, key=self.key, server_key=self.server_key)
