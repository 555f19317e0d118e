"""A node that answers what a test wants, to any question."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.support.fake_node import FakeNode, Reply

USAGE = {"rss_bytes": 1, "cpu_s": 1.0, "uptime_s": 1.0}


def truthful_status(word: str = "") -> dict[str, Any]:
    """All fields of a status; in all that is text, `word`."""
    process = {
        **USAGE,
        "role": f"writer{word}",
        "index": 0,
        "pid": 1,
        "state": f"running{word}",
        "restarts": 0,
        "endpoint": f"tcp://127.0.0.1:1{word}",
        "offset": 1,
        "lag_bytes": 0,
        "exit_code": None,
        "cause": word or None,
        "recovered": None,
    }
    numbers = ("min", "appended", "committed", "flushed", "readable", "epoch", "records")
    return {
        "ready": True,
        "mode": f"normal{word}",
        "cause": word or None,
        "store": f"store{word}",
        "kernel": f"none{word}",
        "http": None,
        "log_file": None,
        "settings": [f"a=b{word}"],
        "origins": [{"setting": f"a{word}", "origin": word, "where": word}],
        "processes": [process],
        "log": dict.fromkeys(numbers, 1),
        "disk": {"free_bytes": 1, "used_ratio": 0.1},
        "operations": [],
        "supervisor": {**USAGE, "pid": 1, "state": "running"},
    }


class LyingNode(FakeNode):
    """A fake node. `status`, `checks` and `topics` are what it says."""

    def __init__(self) -> None:
        self.status: dict[str, Any] = truthful_status()
        self.checks: list[dict[str, Any]] = []
        self.topics: list[str] = []
        super().__init__()

    def _control_status(self, header: Any, payload: bytes, identity: bytes) -> Reply:
        return Reply(self.status)

    def _control_health(self, header: Any, payload: bytes, identity: bytes) -> Reply:
        return Reply({"ready": True, "checks": self.checks})

    def _reader_topics(self, header: Any, payload: bytes, identity: bytes) -> Reply:
        numbers = {"queues": 1, "read_queues": 1, "write_queues": 1, "perm": 6}
        return Reply({"topics": [{"topic": topic, **numbers} for topic in self.topics]})

    _writer_topics = _reader_topics


@contextmanager
def lying_node() -> Iterator[LyingNode]:
    """One for the time of a `with`."""
    node = LyingNode()
    try:
        yield node
    finally:
        node.close()
