"""`keelog serve --controller`: a keeper in the foreground, with a node below it."""

import os
import socket
import sys
import threading
import time
from pathlib import Path

from keelog.replication.keeper.controllers import NodeOfGroup
from keelog.replication.keeper.loop import KeeperOptions, keep
from node.runtime.process import StopFlag, begin_process
from node.runtime.run_files import WAITS, read_elected
from node.runtime.settings import Settings, load_settings, snake_case
from node.supervisor.before_start import place_to_announce
from node.supervisor.bind import parse_controllers, parse_ha, parse_remoting, remoting_place
from node.supervisor.child_process import command, environment
from node.supervisor.exposed import checked_exposure
from node.supervisor.options import Options
from node.supervisor.service import ServiceManager, stop_at_end_of
from protocol.errors import BadRequest

USUAL = {"broker_role": "SYNC_MASTER", "in_sync_replicas": "2"}
"""Of a node with a controller, where nothing else is said: an answer waits for a copy."""
_NOTIFY_EVERY_S = 1.0


def serve_elected(options: Options) -> int:
    """Runs a node in the role that the controllers of `options.broker` give it, until SIGTERM.
    Raises BadRequest for options that do not go with that, and all that `keep` raises."""
    names = (pair.partition("=")[0].strip().rpartition(".")[2] for pair in options.pairs)
    given = {snake_case(name) for name in names}
    usual = [f"store.{name}={value}" for name, value in USUAL.items() if name not in given]
    settings = load_settings((*options.pairs, *usual))
    _check(options, settings)
    checked_exposure(options, settings)
    broker = options.broker
    member = NodeOfGroup(
        broker.broker_cluster_name,
        broker.broker_name or socket.gethostname(),
        place_to_announce(options, remoting_place(options.serve.remoting)),
    )
    # The node below gets the same command line: the last of an option wins.
    below = [*sys.argv[1:], "--controller", ""]
    for pair in usual:
        below += ["-X", pair]
    stop = begin_process("keelog-keeper", "keeper")
    if options.while_pid is not None:
        stop_at_end_of(options.while_pid, stop)
    # The node below starts and stops with each role, and a service manager hears nothing of that.
    manager = ServiceManager.from_environment(os.environ)
    notifying = threading.Thread(target=_notify, args=(manager, options.root, stop), daemon=True)
    notifying.start()
    return keep(
        KeeperOptions(
            options.root,
            settings,
            member,
            parse_controllers(broker.controller_addr),
            command("keelog", below),
            environment(),
            str(Path.cwd()),
        ),
        stop,
    )


def _check(options: Options, settings: Settings) -> None:
    remoting = parse_remoting(options.serve.remoting)
    given_id = "leave it out: the controllers give the id"
    for is_wrong, what, hint in (
        (bool(settings.follow), "--follow", "leave it out: the controllers say who is followed"),
        (options.broker.broker_id != 0, "--broker-id", given_id),
        (settings.controller_id != 0, "controller_id", given_id),
        (
            not options.broker.namesrv_addr,
            "no --namesrv",
            "name the name servers: clients find the master by them alone",
        ),
        (
            parse_ha(options.serve.ha_listen) is None,
            "no --ha",
            "add --ha HOST:PORT, as --ha 0.0.0.0:10912",
        ),
        (
            remoting is None or not remoting.port,
            "--remoting at port 0",
            "name a port: the controllers know the node by it",
        ),
    ):
        if is_wrong:
            raise BadRequest(f"--controller and {what} do not go together", hint)


def _notify(manager: ServiceManager, root: Path, stop: StopFlag) -> None:
    """Notifies the service manager that the node has its first role, and that the keeper lives."""
    while not stop.is_set:
        time.sleep(_NOTIFY_EVERY_S)
        role = read_elected(root).role
        manager.turn(time.monotonic(), role != WAITS, role)
    manager.stopping()
