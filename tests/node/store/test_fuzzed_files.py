"""Files that hold anything at all: every loader answers, or raises one of our errors."""

import json
import random
import zlib
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from node.store.checkpoints import (
    list_progress,
    load_epochs,
    load_floor,
    load_owner,
    load_progress,
    load_tails,
    own_dir,
)
from node.store.config.topics_file import TopicsFile
from node.store.opening import open_store
from node.store.query.look_up import Boundary, FindRequest, find, offset_by_time
from node.store.query.pull import PullRequest, get_message
from protocol.derived.dispatch_request import DispatchRequests, index_keys
from protocol.errors import MqError
from protocol.record.codec import Filler, Record, Torn, decode
from protocol.record.columns import scan
from protocol.record.properties import decode_properties, decode_raw_properties
from tests.support.golden import GetStore

ROUNDS = 400
STORE_ROUNDS = 60
WORDS = (
    "-1", "0", "9223372036854775807", "9223372036854775808", "9" * 5_000, "1.5", "NaN", "null",
    "[]", "{}", '"', "\N{ARABIC-INDIC DIGIT THREE}", "\0", " ", "\n", "crc ", "true", "1e999",
    "[" * 2_000, '{"a":' * 500,
)  # fmt: skip


def sealed(body: bytes) -> bytes:
    return body + f"crc {zlib.crc32(body):08x}\n".encode()


def mutated(data: bytes, pick: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(pick.choice((1, 1, 2, 5))):
        place = pick.randrange(len(changed) + 1)
        match pick.randrange(5):
            case 0 if place < len(changed):
                changed[place] ^= 1 << pick.randrange(8)
            case 1:
                del changed[place : place + pick.choice((1, 5, 50))]
            case 2:
                word = pick.choice(WORDS).encode()
                changed[place : place + pick.choice((0, 1, 3))] = word
            case 3:
                del changed[place:]
            case _:
                changed[place:place] = pick.randbytes(pick.choice((1, 4)))
    return bytes(changed)


TAILS = {"at": 900, "last_record": 700, "store_timestamp": 5, "queues": [["T", 0, 3], ["U", 1, 9]]}
OWN_FILES: dict[str, tuple[str, bytes, Callable[[Path], object]]] = {
    "epochs": ("epochs", b"1 0\n2 500 crc\n3 900 crc after-clean\n", load_epochs),
    "tails": ("tails", json.dumps(TAILS).encode() + b"\n", load_tails),
    "progress": ("progress/index", b"3 900\n", lambda root: load_progress(root, "index")),
    "all progress": ("progress/queue-0-of-1", b"3 900\n", list_progress),
    "floor": ("floor", b"7 900\n", load_floor),
    "owner": ("../abort", b"4711 keelog 3", load_owner),
}


@pytest.mark.parametrize("name", OWN_FILES)
def test_nonsense_with_a_right_checksum_is_read_or_refused(tmp_path: Path, name: str) -> None:
    file, text, load = OWN_FILES[name]
    own_dir(tmp_path).mkdir()
    path = (own_dir(tmp_path) / file).resolve()
    path.parent.mkdir(exist_ok=True)
    pick = random.Random(name)
    refused = 0
    for _ in range(ROUNDS):
        body = mutated(text, pick)
        path.write_bytes(
            pick.choice((sealed(body), sealed(body), body, mutated(sealed(text), pick)))
        )
        try:
            load(tmp_path)
        except MqError as error:
            refused += 1
            assert path.name in str(error)
    if name in ("epochs", "tails", "progress"):
        assert refused > ROUNDS // 20, "nonsense was believed"


def test_any_table_of_topics_is_read_or_refused(tmp_path: Path) -> None:
    path = tmp_path / "config/topics.json"
    path.parent.mkdir()
    entry = {"topicName": "T", "perm": 6, "readQueueNums": 8, "writeQueueNums": 8}
    text = json.dumps({"topicConfigTable": {"T": entry}, "dataVersion": {"counter": 3}}).encode()
    pick = random.Random(1)
    refused = 0
    for _ in range(ROUNDS):
        path.write_bytes(mutated(text, pick))
        try:
            for topic in TopicsFile(tmp_path).topics.values():
                assert 0 <= topic.write_queues <= 65_536
        except MqError:
            refused += 1
    assert refused > ROUNDS // 4


@pytest.mark.parametrize("value", WORDS)
def test_a_number_of_queues_that_cannot_be_is_named(tmp_path: Path, value: str) -> None:
    path = tmp_path / "config/topics.json"
    path.parent.mkdir()
    for name in ("readQueueNums", "writeQueueNums", "perm"):
        path.write_text(f'{{"topicConfigTable": {{"T": {{"{name}": {value}}}}}}}')
        try:
            topic = TopicsFile(tmp_path).topics["T"]
        except MqError as error:
            assert "topics.json" in str(error)
        else:
            assert 0 <= topic.read_queues <= 65_536
            assert 0 <= topic.write_queues <= 65_536


def test_any_bytes_of_a_log_become_records_and_keys_or_end_there(golden: GetStore) -> None:
    data = (golden("mixed-kinds") / "commitlog" / f"{0:020d}").read_bytes()[:20_000]
    pick = random.Random(2)
    for _ in range(ROUNDS):
        changed = mutated(data, pick)
        found = scan(changed, 0)
        if len(found.columns):
            index_keys(DispatchRequests(found.columns))
        record = decode(changed, 0)
        assert isinstance(record, Record | Filler | Torn)
        start = pick.randrange(max(1, len(changed)))
        part = changed[start : start + 200]
        decode_raw_properties(part)
        with suppress(MqError, UnicodeDecodeError):
            decode_properties(part)


def read_everything(root: Path, pick: random.Random) -> None:
    """Looks at a store in every way there is, in a few places each."""
    with open_store(root) as store:
        for topic in store.topics():
            for queue_id in range(3):
                queue = store.queue(topic, queue_id)
                with suppress(MqError):
                    get_message(store.log, queue, pick.randrange(-1, 50), PullRequest())
                with suppress(MqError):
                    offset_by_time(store.log, queue, 1_700_000_000_000, Boundary.LOWER)
            with suppress(MqError):
                find(store, FindRequest(topic, "k1", limit=5))
        for _ in range(5):
            with suppress(MqError):
                store.log.look_up(pick.randrange(store.log.end + 10))


def test_a_store_with_any_changed_file_is_read_or_refused(golden_copy: GetStore) -> None:
    root = golden_copy("small-clean")
    files = sorted(
        path for path in root.rglob("*") if path.is_file() and 0 < path.stat().st_size < 300_000
    )
    kinds: dict[str, list[Path]] = {}
    for path in files:
        kinds.setdefault(path.relative_to(root).parts[0], []).append(path)
    assert {"commitlog", "consumequeue", "index", "checkpoint"} <= kinds.keys()
    pick = random.Random(3)
    for _ in range(STORE_ROUNDS):
        path = pick.choice(kinds[pick.choice(sorted(kinds))])
        before = path.read_bytes()
        used = len(before.rstrip(b"\0")) + 40
        changed = mutated(before[:used], pick)
        if pick.random() < 0.8:  # of the same length: the others are refused at once
            changed = changed[: len(before)].ljust(len(before), b"\0")
        path.write_bytes(changed)
        with suppress(MqError):
            read_everything(root, pick)
        path.write_bytes(before)
