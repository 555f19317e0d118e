"""A consumer group whose members are RocketMQ's Java client and Python's consumer."""

import subprocess
from collections.abc import Iterator
from pathlib import Path
from threading import Thread

import pytest

from keelog import GroupMessage
from tests.interop import probe
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, remoting_place

pytestmark = [
    pytest.mark.interop,
    pytest.mark.timeout(300),
    pytest.mark.skipif(bool(probe.why_missing()), reason=probe.why_missing()),
]
JAVA = Path(probe.RUN).parent
QUEUES = 8
COUNT = 400


class JavaMember:
    """RocketMQ's push consumer in a process of its own."""

    def __init__(self, home: Path, node: RunningNode, group: str, topic: str) -> None:
        host, port = remoting_place(node.stderr)
        libraries = (JAVA / "target" / "cp.txt").read_text().strip()
        self.process = subprocess.Popen(
            ["java", "-Xmx256m", f"-Duser.home={home}", "-cp", f"{JAVA}/target/classes:{libraries}",
             "MemberClient", f"{host}:{port}", group, topic],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        self.lines: list[str] = []
        self._thread = Thread(target=self._listen, daemon=True)
        self._thread.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        self.lines.extend(self.process.stdout)

    def seen(self) -> Iterator[tuple[int, int, str, str]]:
        """Queue, how often it came again, topic and body of each message."""
        for line in [one for one in self.lines if one.rstrip() != "started"]:
            queue, _, times, topic, body = line.rstrip("\n").split(" ", 4)
            yield int(queue), int(times), topic, body

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()
        self._thread.join(10)
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def test_java_and_python_share_queues_failures_and_what_a_killed_member_leaves(  # noqa: PLR0915
    tmp_path: Path,
) -> None:
    probe.build()
    levels = "message_delay_level=1s 1s 1s 1s 1s 1s"
    seen: list[GroupMessage] = []
    with RunningNode(tmp_path / "store", (REMOTING, levels), queue_workers=1, readers=1) as node:
        node.client.create_topic("mixed", QUEUES)

        def handler(message: GroupMessage) -> None:
            seen.append(message)
            if message.body == b"python fails" and not message.reconsume_times:
                raise ValueError("python fails")

        def send(count: int, first: int) -> set[str]:
            bodies = [str(number) for number in range(first, first + count)]
            for number, body in enumerate(bodies):
                node.client.send("mixed", body.encode(), queue_id=number % QUEUES)
            return set(bodies)

        with node.client.consumer("pair", "mixed", start="earliest") as consumer:
            running = Thread(target=consumer.run, args=(handler,), kwargs={"workers": 2})
            running.start()
            java = JavaMember(tmp_path, node, "pair", "mixed")

            def owned() -> set[int]:
                return {queue for topic, queue in consumer.assignment() if topic == "mixed"}

            try:
                wait_until(lambda: len(owned()) == QUEUES // 2, f"no shares: {java.lines}")
                mine = owned()
                bodies = send(COUNT, 0)

                def all_came() -> bool:
                    came = {body for *_, body in java.seen()} | {one.body.decode() for one in seen}
                    return came >= bodies

                wait_until(all_came, "not all came")
                assert {one.queue_id for one in seen} == mine
                assert {queue for queue, *_ in java.seen()} == set(range(QUEUES)) - mine
                node.client.send("mixed", b"java fails", queue_id=min(set(range(QUEUES)) - mine))
                node.client.send("mixed", b"python fails", queue_id=min(mine))

                def again() -> set[str]:
                    """What came again at either, under the topic that it had."""
                    found = {
                        body for _, times, topic, body in java.seen() if times and topic == "mixed"
                    }
                    return found | {
                        one.body.decode()
                        for one in seen
                        if one.reconsume_times and one.topic == "mixed"
                    }

                wait_until(lambda: again() == {"java fails", "python fails"}, "not again", 30)
                bodies |= send(COUNT, COUNT)
            finally:
                java.kill()
            wait_until(lambda: owned() == set(range(QUEUES)), "it did not take over")
            bodies |= send(COUNT, 2 * COUNT)
            wait_until(all_came, "not all came after the kill")
            consumer.stop()
            running.join(30)
