"""`layout` and `fetch`: the bytes of files, by what they hold, and nothing beyond their ends."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from node.reader import answers as reader_fetch
from node.runtime.state_page import STARTING
from protocol.names import offset_file_name
from tests.node.reader.test_service import Desk, Reply
from tests.support.golden import GetStore, facts
from tests.support.living_store import LivingStore

NAME = "small-clean"
KNOWN = facts(NAME)
SEGMENT_BYTES = KNOWN.state["config"]["mappedFileSizeCommitLog"]
END = KNOWN.state["maxPhyOffset"]
HALF = KNOWN.messages[len(KNOWN.messages) // 2]["physicalOffset"]
UNITS = [unit for unit in KNOWN.queue_units if unit["topic"] == KNOWN.queue_units[0]["topic"]]
QUEUE = {"topic": UNITS[0]["topic"], "queue": UNITS[0]["queueId"]}


@pytest.fixture
def desk(golden_copy: GetStore) -> Iterator[Desk]:
    found = Desk(LivingStore(golden_copy(NAME), KNOWN))
    yield found
    found.close()


def payload(reply: Reply) -> bytes:
    assert reply.header["ok"], reply.header
    data = b"" if reply.payload is None else bytes(reply.payload)
    assert reply.header["bytes"] == len(data)
    return data


def layout(desk: Desk, **fields: Any) -> list[dict[str, Any]]:
    """Every page."""
    pages = [desk.get("layout", **fields).header]
    while pages[-1]["cursor"] is not None:
        pages.append(desk.get("layout", **fields, cursor=pages[-1]["cursor"]).header)
    return pages


def bounds(pages: list[dict[str, Any]]) -> dict[tuple[str, int], tuple[int, int]]:
    return {(row[0], row[1]): (row[3], row[4]) for page in pages for row in page["queues"]}


def test_the_log_comes_byte_for_byte_segment_by_segment(desk: Desk) -> None:
    files = sorted((desk.living.root / "commitlog").iterdir())
    data = b"".join(file.read_bytes() for file in files)[:END]
    got, position = b"", 0
    while part := payload(desk.get("fetch", kind="log", offset=position, max_bytes=100_000)):
        assert position // SEGMENT_BYTES == (position + len(part) - 1) // SEGMENT_BYTES
        got, position = got + part, position + len(part)
    assert got == data


def test_queues_and_index_come_byte_for_byte(desk: Desk) -> None:
    root = desk.living.root
    files = sorted((root / "consumequeue" / QUEUE["topic"] / str(QUEUE["queue"])).iterdir())
    data = b"".join(file.read_bytes() for file in files)
    units = payload(desk.get("fetch", kind="queue", offset=0, **QUEUE))
    assert units
    assert units == data[: len(units)]
    assert not data[len(units) :].strip(b"\0")
    for name, slots, _, _, end in desk.get("layout", index=True).header["index"]:
        file = (root / "index" / name).read_bytes()
        got = payload(desk.get("fetch", kind="index", file=name, offset=0))
        assert got == file[: len(got)]
        assert len(got) == 40 + 4 * slots + 20 * end


def test_nothing_beyond_the_readable_end_leaves(desk: Desk) -> None:
    desk.living.publish(HALF)
    within = HALF // SEGMENT_BYTES * SEGMENT_BYTES
    assert len(payload(desk.get("fetch", kind="log", offset=within))) == HALF - within
    for beyond in (HALF, HALF + 1, END, 2**62):
        assert payload(desk.get("fetch", kind="log", offset=beyond)) == b""
    units = np.frombuffer(
        payload(desk.get("fetch", kind="queue", offset=0, **QUEUE)), ">i8,>i4,>i8"
    )
    assert (units["f0"] < HALF).all()
    assert len(units) == sum(
        unit["queueId"] == QUEUE["queue"] and unit["physicalOffset"] < HALF for unit in UNITS
    )
    for name, slots, _, _, _ in desk.get("layout", index=True).header["index"]:
        got = payload(desk.get("fetch", kind="index", file=name, offset=40 + 4 * slots + 20))
        assert (np.frombuffer(got, ">i4,>i8,>i4,>i4")["f1"] < HALF).all()


def test_the_layout_has_rocketmqs_bounds_page_by_page(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader_fetch, "LAYOUT_QUEUES_MAX", 7)
    pages = layout(desk)
    assert len(pages) > 2
    assert all(len(page["queues"]) <= 7 for page in pages)
    ends: dict[tuple[str, int], int] = {}
    for unit in KNOWN.queue_units:
        place = unit["topic"], unit["queueId"]
        ends[place] = max(ends.get(place, 0), unit["index"] + 1)
    assert {place: end for place, (_, end) in bounds(pages).items()} == ends
    starts = np.frombuffer(pages[0]["segments"], "<i8").tolist()
    names = sorted(file.name for file in (desk.living.root / "commitlog").iterdir())
    assert [offset_file_name(start) for start in starts] == names
    assert (pages[0]["min_offset"], pages[0]["readable"]) == (desk.living.start, END)
    topic = QUEUE["topic"]
    some = bounds(layout(desk, topics=[topic, "none", "../commitlog"]))
    assert some == {place: found for place, found in bounds(pages).items() if place[0] == topic}


def test_a_layout_that_is_known_is_not_told_again(desk: Desk) -> None:
    desk.living.publish(HALF)
    first = desk.get("layout").header
    again = desk.get("layout", known=first["token"]).header
    assert (again["same"], again["queues"], again["readable"]) == (True, [], HALF)
    desk.living.publish(END)
    later = desk.get("layout", known=first["token"]).header
    assert (later["same"], later["readable"]) == (False, END)
    assert bounds([later]) != bounds([first])
    desk.living.begin_epoch(END)
    assert not desk.get("layout", known=later["token"]).header["same"]


def test_units_that_a_worker_may_be_taking_back_are_to_be_asked_for_again(desk: Desk) -> None:
    for worker in desk.living.workers:
        worker.publish(state=STARTING, dispatched=0)
    reply = desk.get("fetch", kind="queue", offset=0, **QUEUE)
    assert (reply.error, reply.header["error"]["retriable"]) == ("ServiceNotAvailable", True)
    assert all(resuming for *_, resuming in desk.get("layout").header["queues"])


def test_what_was_deleted_is_not_found(desk: Desk) -> None:
    for folder in ("index", "consumequeue"):
        shutil.rmtree(desk.living.root / folder)
    desk.living.log.publish(min_offset=SEGMENT_BYTES)
    for fields in (
        {"kind": "log", "offset": SEGMENT_BYTES - 1},
        {"kind": "queue", "offset": 0, **QUEUE},
        {"kind": "index", "offset": 0, "file": "20240102030405006"},
    ):
        assert desk.get("fetch", **fields).error == "NotFound", fields


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"kind": "file", "offset": 0},
        {"kind": "log"},
        {"kind": "log", "offset": -1},
        {"kind": "log", "offset": 0, "max_bytes": 0},
        {"kind": "log", "offset": 0, "max_bytes": 4 * 1024 * 1024 + 1},
        {"kind": "queue", "offset": 0},
        {"kind": "queue", "offset": 0, "topic": "../../etc", "queue": 0},
        {"kind": "queue", "offset": 0, "topic": "A", "queue": -1},
        {"kind": "index", "offset": 0},
        {"kind": "index", "offset": 0, "file": "../commitlog/00000000000000000000"},
        {"kind": "index", "offset": 0, "file": "/etc/passwd"},
    ],
    ids=str,
)
def test_a_bad_fetch_is_refused(desk: Desk, fields: dict[str, Any]) -> None:
    assert desk.get("fetch", **fields).error == "BadRequest"


@pytest.mark.parametrize("cursor", ["x", "A/", "A/-1", "../x/1", "A/" + "9" * 300])
def test_a_cursor_that_is_none_of_ours_is_refused(desk: Desk, cursor: str) -> None:
    assert desk.get("layout", cursor=cursor).error == "BadRequest"


def test_a_folder_that_no_topic_can_have_is_passed_over(desk: Desk) -> None:
    odd = Path(desk.living.root) / "consumequeue" / "no topic" / "0"
    odd.mkdir(parents=True)
    assert ("no topic", 0) not in bounds(layout(desk))
