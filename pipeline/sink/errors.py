"""What a node answered a write, as errors that Spark's users see."""

from collections.abc import Iterator
from contextlib import contextmanager

from pipeline.errors import NodeBusyError, NodeRefused, NodeUnreachable, SourceError
from protocol.errors import BusyError, MqError, NotConnected, RequestTimeout


@contextmanager
def naming_node(node: str) -> Iterator[None]:
    """Gives errors of the client, raised inside, a condition and the node's address."""
    try:
        yield
    except SourceError:
        raise
    except (NotConnected, RequestTimeout) as error:
        raise NodeUnreachable(f"node {node}: {error.reason}", error.hint) from None
    except BusyError as error:
        raise NodeBusyError(f"node {node}: {error.reason}", error.hint) from None
    except MqError as error:
        raise NodeRefused(
            f"node {node}: {type(error).__name__}: {error.reason}", error.hint
        ) from None
