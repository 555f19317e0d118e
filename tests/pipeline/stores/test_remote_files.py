"""Files that are read by ranges: whatever is expected and read, the bytes are right."""

from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keelog.client.fetch import FetchClient
from keelog.pipeline.stores.remote_files import Pending, RangeSource, RemoteFiles
from node.store.file_cache import FileVanished, Run
from protocol.errors import StoreDamaged
from protocol.ids import Queue

SIZE = 5_000
DATA = {
    name: bytes((place * 7 + seed) % 251 for place in range(SIZE)) for seed, name in enumerate("ab")
}


class Pretended:
    """What is asked of a source; file `b` may end early, or be gone."""

    def __init__(self, window_bytes: int, in_flight: int, end_of_b: int = SIZE) -> None:
        self.source = RangeSource(window_bytes, in_flight, 10, self.request)
        self.asked: list[tuple[str, int, int]] = []
        self._end_of_b = end_of_b

    def request(self, path: Path, position: int, count: int) -> Pending:
        assert 0 < count <= self.source.window_bytes
        self.asked.append((path.name, position, count))
        future: Future[bytes] = Future()
        if path.name == "b" and self._end_of_b < 0:
            future.set_exception(FileVanished("b", 0, "gone"))
        else:
            end = min(position + count, self._end_of_b if path.name == "b" else SIZE)
            future.set_result(DATA[path.name][position:end])
        return future.result


Range = st.tuples(st.sampled_from("ab"), st.integers(0, SIZE), st.integers(0, 700))


@given(
    st.integers(20, 300),
    st.integers(1, 5),
    st.lists(st.tuples(st.booleans(), Range), max_size=30),
)
def test_any_order_of_expecting_and_reading_gives_the_bytes(
    window_bytes: int, in_flight: int, steps: list[tuple[bool, tuple[str, int, int]]]
) -> None:
    files = RemoteFiles(Pretended(window_bytes, in_flight).source)
    for expects, (name, start, count) in steps:
        file = files.get(Path(name), SIZE)
        end = min(start + count, SIZE)
        if expects:
            file.expect(start, end)
        else:
            assert file.read(start, end - start) == DATA[name][start:end]
    files.close()


@given(st.integers(20, 300), st.integers(1, 5), st.lists(Range, max_size=20))
def test_runs_are_what_single_reads_give(
    window_bytes: int, in_flight: int, ranges: list[tuple[str, int, int]]
) -> None:
    runs = [Run(Path(name), SIZE, start, min(count, SIZE - start)) for name, start, count in ranges]
    files = RemoteFiles(Pretended(window_bytes, in_flight).source)
    wanted = [DATA[run.path.name][run.position : run.position + run.count] for run in runs]
    assert files.read_runs(runs) == wanted


def test_what_is_expected_is_asked_for_once_and_ahead() -> None:
    source = Pretended(100, 3)
    files = RemoteFiles(source.source)
    file = files.get(Path("a"), SIZE)
    file.expect(0, 1000)
    assert len(source.asked) == 3
    got = b"".join(file.read(at, 40) for at in range(0, 1000, 40))
    assert got == DATA["a"][:1000]
    assert source.asked == [("a", at, 100) for at in range(0, 1000, 100)]


@pytest.mark.parametrize(("end", "error"), [(90, StoreDamaged), (-1, FileVanished)])
def test_a_file_that_is_short_or_gone_is_named(end: int, error: type[Exception]) -> None:
    files = RemoteFiles(Pretended(100, 2, end).source)
    file = files.get(Path("b"), SIZE)
    with pytest.raises(error, match="b, offset"):
        file.read(50, 60)
    file.expect(0, 400)
    with pytest.raises(error, match="b, offset"):
        file.read(80, 200)
    if error is FileVanished:
        with pytest.raises(FileVanished):
            file.check()


class _ToldInPages(FetchClient):
    """A client whose node answers with these headers, one after the other."""

    def __init__(self, headers: list[dict[str, Any]]) -> None:
        self.fields: list[dict[str, Any]] = []
        self._headers = headers

    def start(self, operation: str, fields: dict[str, Any], affinity: int = 0) -> Any:
        assert (operation, affinity) == ("layout", 0)
        self.fields.append(fields)
        future: Future[Any] = Future()
        future.set_result(type("Answer", (), {"header": self._headers.pop(0)}))
        return future


def page(queues: list[list[Any]], cursor: str | None, same: bool = False) -> dict[str, Any]:
    ends = {"token": "t", "epoch": 3, "min_offset": 0, "readable": 9, "followed": 9}
    files = {"segment_bytes": 100, "segments": bytes(8), "queue_file_bytes": 40}
    index = [["20240102030405006", 5, 9, 1, 4]]
    return {**ends, **files, "queues": queues, "cursor": cursor, "same": same, "index": index}


def test_all_pages_of_a_layout_are_one() -> None:
    rows = [["t", number, 0, 1, 2, False] for number in range(3)]
    client = _ToldInPages([page(rows[:2], "t/1"), page(rows[2:], None)])
    found = client.layout("k", topics=["t"], with_index=True)
    assert found is not None
    assert [row.queue for row in found.queues] == [Queue("t", number) for number in range(3)]
    assert [(row.name, row.end) for row in found.index] == [("20240102030405006", 4)]
    assert [fields.get("cursor") for fields in client.fields] == [None, "t/1"]
    assert client.fields[1]["topics"] == ["t"]
    assert _ToldInPages([page([], None, same=True)]).layout("t") is None
