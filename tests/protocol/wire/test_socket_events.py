"""A monitor's messages, read without pyzmq's parser, which brings asyncio and TLS along."""

import zmq
from zmq.utils.monitor import parse_monitor_message

from protocol.wire.zmtp import parse_socket_event


def test_an_event_is_what_pyzmq_reads_from_it() -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
        monitor = socket.get_monitor_socket(zmq.EVENT_LISTENING)
        socket.bind("tcp://127.0.0.1:*")
        frames = monitor.recv_multipart()
        socket.disable_monitor()
        monitor.close()
    found, known = parse_socket_event(frames[0]), parse_monitor_message(frames)
    assert found == (known["event"], known["value"])
    assert found[0] == zmq.EVENT_LISTENING
    assert found[1] > 2, "a descriptor"
