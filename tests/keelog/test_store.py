"""`keelog.store`: messages of a directory without a node, as RocketMQ wrote them."""

import subprocess
import sys
from collections import Counter
from pathlib import Path
from zlib import crc32

import pytest

import keelog
from keelog.store import open_store
from protocol.record.codec import CRC_MASK
from tests.support.flipped_record import flip_record
from tests.support.golden import GetStore, facts

STORE = "small-clean"


@pytest.fixture
def root(golden: GetStore) -> Path:
    return golden(STORE)


def test_a_scan_gives_every_message_as_rocketmq_stored_it(root: Path) -> None:
    known = [
        (m["topic"], m["queueOffset"], m["msgId"], m["storeSize"], m["bodyLength"], m["bodyCRC"])
        for m in facts(STORE).messages
    ]
    with open_store(root) as store:
        found = [
            (m.topic, m.queue_offset, m.msg_id, m.store_size, len(m.body), crc32(m.body) & CRC_MASK)
            for m in store.scan()
        ]
    assert found == known


def test_a_scan_of_a_topic_and_between_two_times_leaves_out_the_rest(root: Path) -> None:
    messages = facts(STORE).messages
    (topic, _), *_ = Counter(m["topic"] for m in messages).most_common()
    times = sorted(m["storeTimestamp"] for m in messages if m["topic"] == topic)
    since, until = times[len(times) // 4], times[len(times) // 2]
    known = [
        m["physicalOffset"]
        for m in messages
        if m["topic"] == topic and since <= m["storeTimestamp"] <= until
    ]
    with open_store(root) as store:
        found = [m.physical_offset for m in store.scan(topic, since, until)]
        assert list(store.scan("no-such-topic")) == []
    assert found == known
    assert 0 < len(found) < len(times)


def test_a_message_is_found_by_its_id_its_place_and_its_keys(root: Path) -> None:
    wanted = next(m for m in facts(STORE).messages if m["properties"].get("KEYS") and m["queued"])
    with open_store(root) as store:
        message = store.get(wanted["msgId"])
        assert message == store.get(physical_offset=wanted["physicalOffset"])
        key, unique = message.keys[0], message.unique_key
        newest_first = list(store.find(message.topic, key))
        assert message in newest_first
        assert all(key in m.keys for m in newest_first)
        assert list(store.find(message.topic, key, limit=1)) == newest_first[:1]
        assert list(store.find(message.topic, unique, unique=True)) == [message]
        for miss in ("0" * 32, wanted["msgId"][:-1] + "1"):
            with pytest.raises(keelog.NotFound):
                store.get(miss)
        with pytest.raises(keelog.BadRequest):
            store.get()
        with pytest.raises(keelog.UnknownTopic):
            next(store.find("no-such-topic", "k"))


def test_a_scan_stops_at_damage_and_says_where(golden_copy: GetStore) -> None:
    root, messages = golden_copy(STORE), facts(STORE).messages
    at = messages[5]["physicalOffset"]
    with (root / "commitlog" / f"{0:020d}").open("r+b") as log:
        log.seek(at + 90)
        byte = log.read(1)[0]
        log.seek(at + 90)
        log.write(bytes([byte ^ 1]))
    with open_store(root) as store:
        scan = store.scan()
        assert [next(scan).physical_offset for _ in range(5)] == [
            m["physicalOffset"] for m in messages[:5]
        ]
        with pytest.raises(keelog.StoreDamaged) as caught:
            next(scan)
    assert caught.value.offset == at


def command(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "keelog", *words],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip


def damaged_message(root: Path) -> tuple[str, str, int, int]:
    """Damages one of several messages with a key; topic, key, its offset, and how many are left."""
    topic, key = "orders", "hot"
    with open_store(root) as store:
        found = list(store.find(topic, key))
    hit = next(m for m in found[len(found) // 2 :] if len(m.body) > 8).physical_offset
    flip_record(root, hit)
    return topic, key, hit, len(found) - 1


def test_one_damaged_message_hides_no_other(golden_copy: GetStore) -> None:
    root = golden_copy(STORE)
    topic, key, hit, left = damaged_message(root)
    met: list[keelog.StoreDamaged] = []
    with open_store(root) as store:
        found = []
        with pytest.raises(keelog.StoreDamaged) as raised:
            for message in store.find(topic, key):
                found.append(message)
        assert (raised.value.offset, len(found)) == (hit, left)
        assert len(list(store.find(topic, key, on_damage="skip"))) == left
        assert len(list(store.find(topic, key, on_damage=met.append))) == left
        assert [error.offset for error in met] == [hit]
        with pytest.raises(keelog.StoreDamaged):
            list(store.scan())
        assert len(list(store.scan(on_damage="skip"))) == len(facts(STORE).messages) - 1
        with pytest.raises(keelog.BadRequest, match="on_damage"):
            list(store.find(topic, key, on_damage="maybe"))  # type: ignore[arg-type]
    words = [
        "store",
        "find",
        str(root),
        "--topic",
        topic,
        "--key",
        key,
        "--jsonl",
        "--limit",
        "1000",
    ]
    done = command(*words)
    assert (done.returncode, len(done.stdout.splitlines())) == (5, left)
    assert f"offset {hit}" in done.stderr
    assert "1 damaged; " in done.stderr
    assert command(*words, "--on-damage", "fail").returncode == 5
