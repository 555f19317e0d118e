"""For tests of programs that use Keelog: a real node on a directory of its own.

    with TestNode() as node, node.connect() as client:
        assert client.send("orders", b"three apples").status == "PUT_OK"

pytest finds the fixtures `keelog_node`, `keelog_client` and `keelog_topic` by itself, where Keelog
is installed: see `keelog.pytest_plugin`. Nothing here needs pytest.
"""

import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from keelog.bench.node_process import ANY_DISK, Node
from keelog.cli.settings import value_text
from keelog.client.client import Client, connect
from node.runtime.addresses import loopback
from protocol.errors import ServiceNotAvailable

LOG_LINES_SHOWN = 100
"""Number of lines of a node's log, the last ones, that are shown beside a failure."""
START_TRIES = 3
"""Another program may take a port between the look at it and the node's start."""
TIMEOUT_S = 30.0
"""Of the clients for tests: a machine that is busy with tests is slow, and not wrong."""
SMALL = {
    "mapped_file_size_commit_log": 16 * 1024 * 1024,
    "max_hash_slot_num": 10_000,
    "max_index_num": 40_000,
}
"""Files that are made in no time; messages may have 4 MiB all the same."""
_NO_PORT = "Address already in use"


class TestNode:
    """A node, as a context: ready inside, gone after it, with all that it stored.

    It has a writer, a queue worker, an index worker, a reader, and for groups and delays a gateway
    and tasks, each a process of its own, on free ports of 127.0.0.1. `settings` without those two:
    `{"serve.remoting": ""}`. It ends with the process that started it, whatever ends that, and not
    with the thread. Its disk never counts as full. A start takes a second or two, so let tests
    share one, each with a topic of its own.
    """

    __test__ = False  # pytest is not to collect it

    def __init__(
        self,
        directory: Path | str | None = None,
        settings: Mapping[str, object] | None = None,
        *,
        queue_workers: int = 1,
        readers: int = 1,
    ) -> None:
        """Nothing runs before `start`, or `with`.

        `directory`: where the store and the node's log go; it is kept. None: a temporary
        one, which goes with the node. `settings`: names and values as in docs/settings.md, for
        instance `{"flush_disk_type": "SYNC_FLUSH"}`; else files are small (SMALL).
        """
        self._is_ours = directory is None
        self._directory = None if directory is None else Path(directory)
        pairs = {**SMALL, "serve.remoting": f"{loopback()}:0", **(settings or {})}
        self._settings = [
            *ANY_DISK,
            *(f"{name}={value_text(value)}" for name, value in pairs.items()),
        ]
        self._queue_workers, self._readers = queue_workers, readers
        self._node: Node | None = None

    @property
    def endpoint(self) -> str:
        """The address for `keelog.connect`; it stays when the node is killed and started again."""
        return self._started().endpoint

    @property
    def store(self) -> Path:
        """The store's directory, for `keelog.store.open_store` and `keelog store`."""
        return self._started().root

    @property
    def log(self) -> str:
        """The node's log since its last start: a line for each event."""
        return "" if self._node is None else self._node.said()

    @property
    def log_end(self) -> str:
        """The last lines of it, LOG_LINES_SHOWN at most."""
        return "\n".join(self.log.splitlines()[-LOG_LINES_SHOWN:])

    @property
    def is_running(self) -> bool:
        """Whether it was started and neither stopped nor killed."""
        return self._node is not None and self._node.is_running

    def start(self) -> Self:
        """Starts it, for the first time or after `kill`, and returns when it is ready.

        Raises ServiceNotAvailable, with what it said, when it does not become so.
        """
        is_first, tries = self._node is None, 0
        while True:
            tries += 1
            if is_first:
                self._directory = self._directory or Path(tempfile.mkdtemp(prefix="keelog-"))
                self._node = Node(
                    self._directory / "store",
                    self._settings,
                    queue_workers=self._queue_workers,
                    readers=self._readers,
                )
            node = self._started()
            node.begin()
            try:
                node.await_ready()
            except ServiceNotAvailable as error:
                if not is_first or tries == START_TRIES or _NO_PORT not in error.reason:
                    self._forget()
                    raise
            except BaseException:  # Ctrl-C must not leave a node running
                node.kill()
                self._forget()
                raise
            else:
                return self

    def stop(self) -> None:
        """Ends it as an operator would. Raises AssertionError when it does not end well: whatever
        was tested, that is worth a look. Harmless when repeated."""
        if not self.is_running:
            self._forget()
            return
        code, said = self._started().stop(), self.log_end
        self._forget()
        if code != 0:
            raise AssertionError(f"the node ended with {code}; it said:\n{said}")

    def kill(self) -> None:
        """SIGKILL to all of its processes at once. `start` brings it back, at the same address and
        with what it had stored."""
        self._started().kill()

    def kill_process(self, role: str) -> None:
        """SIGKILL to one kind of process: "writer", "queue", "index" or "reader". The node starts
        it again, and clients go on."""
        children = [child for found, child in self._started().children() if found == role]
        if not children:
            raise ValueError(f"the node has no process {role!r} now")
        for child in children:
            child.kill()

    def connect(self, timeout: float = TIMEOUT_S) -> Client:
        """A client of it, to be closed by the caller; `timeout` in seconds."""
        return connect(self.endpoint, timeout)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def __repr__(self) -> str:
        return f"<keelog.testing node: {self.endpoint if self.is_running else 'not running'}>"

    def _started(self) -> Node:
        assert self._node is not None, "the node was not started"
        return self._node

    def _forget(self) -> None:
        """After its end: a directory of ours goes, and a later start begins anew."""
        if self._is_ours and self._directory is not None:
            shutil.rmtree(self._directory, ignore_errors=True)
            self._directory = self._node = None
