"""Where a node's gateway listens, from what its control socket reports."""

from typing import NamedTuple

from keelog.client.transport.routes import Routes
from protocol.errors import NotAllowed, NotConnected


class GatewayPlace(NamedTuple):
    """Host and port, as for `socket.create_connection`."""

    host: str
    port: int


def check_gateway(routes: Routes, endpoint: str) -> str:
    """The address of the gateway of the node at `endpoint`; empty while it is not up.

    Raises NotAllowed for a node that was started without one.
    """
    if routes.remoting is None:
        raise NotAllowed(
            f"the node at {endpoint} has no gateway, which consumer groups need",
            "start the node with --remoting 127.0.0.1:10911; a reader alone needs none of it:"
            " keelog consume TOPIC --cursor NAME, or client.tail(topic, cursor=NAME)",
        )
    return routes.remoting


def gateway_place(routes: Routes, endpoint: str) -> GatewayPlace:
    """As `check_gateway`, its host and port. Raises NotConnected while it is not up."""
    address = check_gateway(routes, endpoint)
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if not port.isdigit():
        raise NotConnected(
            f"the gateway of the node at {endpoint} is not up yet", "see keelog health"
        )
    return GatewayPlace(host.strip("[]"), int(port))
