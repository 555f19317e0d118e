"""docs/limits.md and the code: each limit that the page names is there, and the other way round."""

import ast
import re
from dataclasses import fields
from pathlib import Path

from node.runtime.settings import Settings
from tests.test_docs import missing_places

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "limits.md"
PRODUCT = (
    "protocol", "node", "workers", "keelog/client", "keelog/gateway", "keelog/replication",
    "keelog/console",
)  # fmt: skip
ROW = re.compile(r"^- (`[^`]+`(?:, `[^`]+`)*) \(", re.MULTILINE)
NAME = re.compile(r"`([^`]+)`")
IS_LIMIT = re.compile(r"^[A-Z][A-Z0-9_]*(_MAX|_AT_ONCE|HIGH_WATER_MARK|BACKLOG)(_[A-Z_]+)?$")

NOT_OF_A_QUEUE = {
    "values of fields": (
        "INT32_MAX", "INT64_MAX", "BATCH_MAX",
        "PORT_MAX", "BROKER_ID_MAX",
        "REQUEST_ID_MAX", "QUEUE_ID_MAX", "TOPIC_BYTES_MAX", "RETRY_TOPIC_BYTES_MAX",
        "GROUP_CHARS_MAX",
        "SHORT_TOPIC_CHARS_MAX", "TIME_MS_MAX",
        "DEFAULT_MAX_MESSAGE_BYTES", "RECORD_EXTRA_BYTES_MAX",
    ),
    "where a slower or faster way begins": (
        "FEW_UNITS_MAX",
        "FEW_RECORDS_MAX", "FEW_BYTES_MAX", "FEW_QUEUES_MAX", "ONE_BY_ONE_MAX",
    ),
    "how long somebody waits or is believed": (
        "HELD_S_MAX", "FREED_S_MAX",
        "TURN_S_MAX", "TOPICS_S_MAX", "POLL_MS_MAX", "ORPHANS_S_MAX", "WAIT_S_MAX", "UNFIT_S_MAX",
        "LOOK_S_MAX", "RECONNECT_MS_MAX", "BACKOFF_S_MAX", "CONNECT_S_MAX", "SEGMENT_APPEARS_S_MAX",
        "STORE_LOCK_S_MAX", "LOOP_S_MAX", "WRITER_END_S_MAX", "SLEEP_S_MAX", "ASLEEP_LOOKS_MAX",
    ),
    "of a store at rest, or of its repair": (
        "RECOVER_FILES_MAX", "TAILS_AGE_BYTES_MAX", "WALK_BYTES_MAX", "FOLLOWING_BYTES_MAX",
        "ALIKE_MAX", "CHECKED_FILES_MAX", "GAP_MARKER_BYTES_MAX", "BYTES_MAX",
    ),
}  # fmt: skip

QUEUES: dict[str, tuple[str, ...]] = {
    "keelog/client/consumer/queues.py": (
        "keelog/client/consumer/options.py::MESSAGES_MAX",
        "keelog/client/consumer/queues.py::SPAN_MAX",
    ),
    "keelog/client/event_loop.py": (
        "keelog/client/subscription.py::PULLS_MAX",
        "keelog/client/transport/io_thread.py::CALLS_MAX",
    ),
    "keelog/client/transport/direct.py": (
        "keelog/client/subscription.py::PULLS_MAX",
        "keelog/client/transport/direct.py::UNSENT_BYTES_MAX",
    ),
    "keelog/client/send/sender.py": (
        "keelog/client/options.py::ProducerSettings.max_in_flight",
        "keelog/client/transport/io_thread.py::CALLS_MAX",
    ),
    "keelog/client/transport/io_thread.py": ("keelog/client/transport/io_thread.py::CALLS_MAX",),
    "keelog/client/subscription.py": ("keelog/client/subscription.py::PULLS_MAX",),
    "keelog/replication/followers/book.py": ("keelog/replication/followers/book.py::MOMENTS_MAX",),
    "node/writer/requests.py": ("send_thread_pool_queue_capacity",),
    "node/writer/log/flush.py": ("send_thread_pool_queue_capacity",),
    "node/runtime/wakeup.py": ("node/runtime/wakeup.py::RINGS_AT_ONCE",),
    "node/reader/tail_cache.py": ("node/reader/tail_cache.py::TAIL_RECORDS_MAX",),
    "node/supervisor/service.py": ("node/supervisor/service.py::STATUS_CHARS_MAX",),
    "node/serving/request_server.py": (
        "node/serving/request_server.py::OWED_BYTES_MAX",
        "node/serving/request_server.py::BACKLOG",
        "node/serving/request_server.py::UNSENT_MAX",
        "node/serving/request_server.py::SEND_HIGH_WATER_MARK",
    ),
    "node/access/curve.py": ("node/access/curve.py::ZAP_AT_ONCE",),
    "node/serving/doors.py": ("node/serving/request_server.py::BACKLOG",),
    "protocol/wire/zmtp.py": ("node/serving/request_server.py::SEND_HIGH_WATER_MARK",),
    "node/store/log/reader.py": ("node/store/log/reader.py::BUFFERS_BYTES_MAX",),
    "keelog/gateway/connection.py": ("keelog/gateway/connection.py::UNDER_WAY_MAX",),
    "keelog/gateway/sending/writer_link.py": (
        "keelog/gateway/sending/sends.py::WAITING_BYTES_MAX",
    ),
    "keelog/gateway/transaction_ends.py": ("keelog/gateway/transaction_ends.py::OFFSETS_MAX",),
    "keelog/gateway/tasks/delay_level.py": ("keelog/gateway/system_queue.py::PAGE_MESSAGES_MAX",),
    "node/writer/repeats.py": ("idempotent_keys_max",),
    "node/writer/removal.py": (
        "node/writer/removal.py::WAITING_MAX",
        "node/writer/topic_table.py::TOPICS_MAX",
    ),
    "keelog/gateway/admin/broker_info.py": ("keelog/gateway/admin/broker_info.py::KEYS_MAX",),
    "keelog/client/transport/routes.py": ("keelog/client/transport/io_thread.py::CALLS_MAX",),
    "keelog/console/node_link.py": ("keelog/console/node_link.py::POINTS_MAX",),
    "keelog/console/process.py": ("keelog/console/server.py::BACKLOG",),
    "node/runtime/addresses.py": ("keelog/client/transport/io_thread.py::CALLS_MAX",),
}
"""Files with queues (deques, sockets, heaps of work), and the limit that holds for them."""


def names_on_page() -> set[str]:
    return {name for row in ROW.findall(PAGE.read_text()) for name in NAME.findall(row)}


def sources() -> list[Path]:
    return sorted(path for top in PRODUCT for path in (ROOT / top).rglob("*.py"))


def limits_of(path: Path) -> set[str]:
    """The limits that a module sets at its head."""
    found = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                found |= {n.id for n in ast.walk(target) if isinstance(n, ast.Name)}
    return {name for name in found if IS_LIMIT.fullmatch(name)}


def queues_in(source: str) -> int:
    """How many queues a module makes: deques without a length, sockets, pools of threads."""
    calls = [node.func for node in ast.walk(ast.parse(source)) if isinstance(node, ast.Call)]
    made = {"deque", "socket", "Queue", "SimpleQueue", "LifoQueue"}
    queues = 0
    for call in calls:
        name = call.attr if isinstance(call, ast.Attribute) else getattr(call, "id", "")
        module = getattr(getattr(call, "value", None), "id", "")
        # Our own `Queue` is a topic's queue.
        queues += name in made and (name != "Queue" or module in ("queue", "asyncio"))
    return queues


def test_every_limit_on_the_page_is_in_the_code() -> None:
    names = names_on_page()
    settings = {field.name for field in fields(Settings)}
    assert len(names) > 50, "the lists were not found"
    places = {name for name in names if "::" in name}
    assert not missing_places("\n".join(places), ROOT)
    assert names - places <= settings


def test_every_limit_in_the_code_is_on_the_page() -> None:
    others = {name for kind in NOT_OF_A_QUEUE.values() for name in kind}
    on_page = names_on_page()
    missing = [
        f"{path.relative_to(ROOT)}::{name}"
        for path in sources()
        for name in limits_of(path)
        if name not in others and f"{path.relative_to(ROOT)}::{name}" not in on_page
    ]
    assert not missing, "add them to docs/limits.md, or say here what they are"


def test_every_queue_in_the_code_has_a_limit_with_a_name() -> None:
    with_queues = {str(path.relative_to(ROOT)) for path in sources() if queues_in(path.read_text())}
    assert with_queues == QUEUES.keys()
    assert {name for names in QUEUES.values() for name in names} <= names_on_page()


def test_a_queue_is_seen_where_there_is_one() -> None:
    for source in ("deque()", "a.socket(zmq.SUB)", "queue.Queue()", "x = collections.deque([1])"):
        assert queues_in(source) == 1
    assert queues_in("Queue('topic', 3); list(); sorted(a)") == 0
