"""The process that serves those who follow the node, by RocketMQ's replication.

Run it as `python -m keelog.replication.followers.loop DIR --bind HOST:PORT`.
"""

import logging
import os
from functools import partial

from keelog.replication.followers.server import FollowerServer, listen
from node.runtime.event_log import fields
from node.runtime.locks import FileLock
from node.runtime.process import (
    EXIT_OK,
    OOM_READER,
    ChildProcess,
    StopFlag,
    child_parser,
    leave,
    run_process,
)
from node.runtime.settings import Settings
from node.runtime.state_page import WorkerPage, run_dir
from node.runtime.wakeup import FOLLOWERS_SLOT
from node.store.identity.places import check_created
from protocol.addresses import is_loopback
from protocol.errors import BadRequest, ServiceNotAvailable
from protocol.ha import DEFAULT_HA_PORT

log = logging.getLogger("keelog.followers")

LOCK_WAIT_S = 2.0
PORT_MAX = 65_535


def parse_place(text: str) -> tuple[str, int]:
    """Reads HOST:PORT. Raises BadRequest."""
    host, _, port = text.rpartition(":")
    if not host or not port.isdigit() or int(port) > PORT_MAX:
        raise BadRequest(f"cannot listen at {text[:80]!a}", f"write 127.0.0.1:{DEFAULT_HA_PORT}")
    return host, int(port)


def main(arguments: list[str] | None = None) -> int:
    """Serves the followers of a store until SIGTERM."""
    parser = child_parser("keelog.replication.followers.loop", __doc__)
    parser.add_argument("--bind", default=f"127.0.0.1:{DEFAULT_HA_PORT}", metavar="HOST:PORT")
    options = parser.parse_args(arguments)
    root = options.dir.resolve()
    child = ChildProcess(
        slot="followers",
        title="keelog-follow",
        what=f"the process for the followers of {root} ended",
        root=root,
        options=options,
        oom_points=OOM_READER,
    )
    return run_process(child, partial(_serve, child))


def _serve(child: ChildProcess, settings: Settings, stop: StopFlag) -> int:
    root = child.root
    check_created(root)
    host, port = parse_place(child.options.bind)
    os.chdir(run_dir(root))
    name = f"{FOLLOWERS_SLOT}.lock"
    lock = FileLock.take(run_dir(root) / name, record=False, wait_s=LOCK_WAIT_S)
    try:
        listener = listen(host, port)
    except OSError as error:
        raise ServiceNotAvailable(
            f"cannot listen at {host}:{port}: {error.strerror or error}",
            "stop who listens there, or name another port",
        ) from None
    if not is_loopback(host) and not settings.ha_allowed_peers:
        log.warning("everybody who reaches this address gets the log", extra=fields(address=host))
    with WorkerPage.create(root, FOLLOWERS_SLOT) as page:
        server = FollowerServer(root, settings, listener, page)
        try:
            child.report_ready(f"tcp://{host}:{listener.getsockname()[1]}")
            server.run(stop)
        finally:
            server.close()
    lock.release()
    return EXIT_OK


if __name__ == "__main__":
    leave(main())
