"""RocketMQ opens the folder of a node that was killed: its store, then its broker."""

from contextlib import closing
from pathlib import Path

from protocol.names import CONSUMER_OFFSETS_FILE
from protocol.remoting.codes import RequestCode, ResponseCode
from protocol.remoting.java_json import parse_java_json
from scripts.rivals.rocketmq import Addresses, RocketMQ, class_path, start_name_server
from tests.interop import probe
from tests.soak.clients.mixed_programs import GROUPS, TOPIC
from tests.soak.clients.servers import BROKER, BROKER_HEAP, BROKER_SETTINGS
from tests.soak.harness import SMALL_FILES
from tests.support.remoting import RemotingPeer

SIZES: dict[str, object] = {
    "mappedFileSizeCommitLog": 1_048_576,
    "mappedFileSizeConsumeQueue": 6_000,
    "maxHashSlotNum": 1_000,
    "maxIndexNum": 4_000,
}
"""SMALL_FILES by RocketMQ's names."""
assert len(SIZES) == len(SMALL_FILES)
Ends = dict[tuple[str, int], int]
"""The offset after the last message, by topic and queue."""


def open_with_store(root: Path, work: Path, records: int, ends: Ends) -> list[str]:
    """Opens it with RocketMQ's own store, which reads each record and pulls each queue."""
    report = probe.RocketMQ(work, SIZES).facts(root)
    state = report.state
    faults = []
    if state["messages"] != records:
        faults.append(f"RocketMQ reads {state['messages']} records of {records}")
    seen = {(one["topic"], one["queueId"]): one["maxOffset"] for one in state["queues"]}
    faults += [
        f"RocketMQ sees queue {queue} end at {seen.get(queue)}, not {end}"
        for queue, end in ends.items()
        if seen.get(queue) != end
    ]
    return faults


def open_with_broker(root: Path, ends: Ends) -> list[str]:
    """Starts RocketMQ's broker on it, and asks for the ends of queues and the groups' places."""
    table = parse_java_json((root / CONSUMER_OFFSETS_FILE).read_text())["offsetTable"]
    classes, addresses = class_path(), Addresses.free()
    home = root.parent
    settings = {**BROKER_SETTINGS, **SIZES, "brokerName": BROKER}
    broker = RocketMQ(classes, home, addresses, settings, BROKER_HEAP)
    assert broker.store == root
    names = start_name_server(classes, home / "names", addresses.name_server)
    try:
        broker.start()
        return _differences(addresses.broker, table, ends)
    finally:
        broker.kill()
        names.kill()


def _differences(address: str, table: dict[str, dict[str, int]], ends: Ends) -> list[str]:
    host, _, port = address.partition(":")
    faults = []
    with closing(RemotingPeer((host, int(port)))) as peer:

        def asked(code: RequestCode, fields: dict[str, object]) -> int:
            answer = peer.ask(code, fields)
            if answer.code != ResponseCode.SUCCESS:
                faults.append(f"the broker refuses {fields}: {answer.header.remark}")
                return -1
            return int(answer.ext["offset"])

        for (topic, queue_id), end in ends.items():
            found = asked(RequestCode.GET_MAX_OFFSET, {"topic": topic, "queueId": queue_id})
            if found != end:
                faults.append(f"the broker sees {topic} {queue_id} end at {found}, not {end}")
        for rule in GROUPS:
            for text, offset in table.get(f"{TOPIC}@{rule.name}", {}).items():
                fields = {
                    "consumerGroup": rule.name, "topic": TOPIC, "queueId": int(text),
                    "setZeroIfNotFound": False,
                }  # fmt: skip
                found = asked(RequestCode.QUERY_CONSUMER_OFFSET, fields)
                if found != offset:
                    faults.append(f"the broker has {rule.name} at {found}, not {offset}")
    return faults
