"""RocketMQ's example of requests and replies, unmodified, sees the same at node and broker."""

from pathlib import Path

from tests.clients.examples.running import MARKS, both

pytestmark = MARKS


def test_the_example_of_requests_and_replies_sees_at_a_node_what_it_sees_at_a_broker(
    tmp_path: Path,
) -> None:
    found = both("request_reply", tmp_path)
    assert found["node"] == found["broker"]
    timed_out, refused, request, reply, called, _ = found["node"]
    assert timed_out == "nobody replies: RequestTimeoutException"
    assert "'reply message contents.'" in request
    assert "SEND_OK" in reply
    assert refused == "reply to one that is gone: MQBrokerException: CODE: 1"
    assert called == "asynchronous: request to <RequestTopic> "
