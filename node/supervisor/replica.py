"""What is different in a node that follows a master."""

from dataclasses import replace

from node.runtime.following.source import parse_follow
from node.runtime.settings import Settings
from node.supervisor.options import Options
from node.supervisor.plan import ChildRole
from protocol.modules import module_name

REPLICA = module_name("replication.replica.loop")
FIRST_SLAVE = 1


def as_replica(options: Options, settings: Settings) -> Options:
    """The options of a node that follows, where the settings say so: another process in the place
    of the writer, and at the name servers the place of a slave. Raises BadRequest."""
    if not settings.follow:
        return options
    source, broker = parse_follow(settings.follow), options.broker
    if source.broker:
        broker = replace(
            broker,
            broker_name=source.broker,
            namesrv_addr=broker.namesrv_addr or ";".join(source.name_servers),
        )
    if broker.namesrv_addr and not broker.broker_id:
        broker = replace(broker, broker_id=FIRST_SLAVE)
    modules = {**options.modules, ChildRole.WRITER: REPLICA}
    return replace(options, broker=broker, modules=modules)
