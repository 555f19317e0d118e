"""A monitor's messages, read without pyzmq's parser, which brings asyncio and TLS along."""

import subprocess
import sys

import pytest
import zmq
from zmq.utils.monitor import parse_monitor_message

from protocol.wire.socket_events import parse_socket_event


def test_an_event_is_what_pyzmq_reads_from_it() -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        monitor = socket.get_monitor_socket(zmq.EVENT_LISTENING)
        socket.bind("tcp://127.0.0.1:*")
        frames = monitor.recv_multipart()
        socket.disable_monitor()
        monitor.close()
    found, known = parse_socket_event(frames[0]), parse_monitor_message(frames)
    assert found == (known["event"], known["value"])
    assert found.event == zmq.EVENT_LISTENING
    assert found.value > 2, "a descriptor"


@pytest.mark.parametrize(
    "module",
    ["node.writer.loop", "node.reader.loop", "workers.consume_queue", "workers.index_file"],
)
def test_a_process_of_a_node_starts_without_what_it_never_uses(module: str) -> None:
    """Each of them costs a start 8 to 50 ms, and a node has six processes."""
    unused = {"asyncio", "ssl", "psutil", "node.store.query.sql_parser"}
    code = f"import sys, {module}; print(*{unused} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
