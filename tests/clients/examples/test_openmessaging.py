"""RocketMQ's examples of OpenMessaging, unmodified, see the same at node and broker."""

from pathlib import Path

from tests.clients.examples.running import MARKS, both

pytestmark = MARKS


def test_the_examples_of_openmessaging_see_at_a_node_what_they_see_at_a_broker(
    tmp_path: Path,
) -> None:
    found = both("openmessaging", tmp_path)
    assert found["node"] == found["broker"]
    assert found["node"] == [
        "sent 2 with ids, one-way True",
        "pushed 3, of the ids 2",
        "pulled 1, its own True",
    ]
