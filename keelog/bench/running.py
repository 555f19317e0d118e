"""Runs a load. `run` is what the command line calls too."""

import keelog
from keelog.bench.measuring import run_on
from keelog.bench.results import Result
from keelog.bench.setup import LoadListener, Scene, make_topics, node_for
from keelog.bench.workload import Workload


def run(load: Workload, listener: LoadListener | None = None) -> Result:
    """Runs one load and returns what it found; starts a node for it unless one is named.

    Raises BadRequest for a workload that makes no sense, LoadFailed when a process of the load
    ends before its time, and what `keelog.connect` raises.
    """
    load.check()
    listener = listener or LoadListener()
    if load.kind == "store":
        # Imported here: no other load needs the writer.
        from keelog.bench.in_store import run_in_store

        return run_in_store(load, listener)
    if load.kind == "mixed":
        # Imported here: only this one needs to check stores.
        from keelog.bench.mixed import run_mixed

        return run_mixed(load, listener)
    with (
        node_for(load) as place,
        keelog.connect(place.endpoint, timeout=load.timeout) as client,
    ):
        return run_on(Scene(load, client, listener, make_topics(load, client), place))
