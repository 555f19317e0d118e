"""What `keelog spark …` says before Java starts: all that can be known without Spark."""

import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from keelog.cli.main import run
from keelog.pipeline import session
from keelog.pipeline.jobs.export import export_here
from keelog.pipeline.jobs.export_files import ExportFolder
from node.runtime.locks import StoreLock
from tests.workers.living_log import SETTING_OPTIONS, LivingLog

OPEN_SESSION = session.open_session
Keelog = Callable[..., tuple[int, list[str]]]


@pytest.fixture
def keelog(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Keelog:
    """Runs `keelog spark …` where no session may be opened: (exit code, lines of stderr)."""

    def no_session(*_: object) -> None:
        pytest.fail("a session was opened")

    monkeypatch.setattr(session, "open_session", no_session)

    def call(*words: object) -> tuple[int, list[str]]:
        code = run(["spark", *map(str, words)])
        return code, capfd.readouterr().err.splitlines()

    return call


@pytest.fixture
def root(tmp_path: Path) -> Path:
    log = LivingLog(tmp_path / "store")
    log.grow(20)
    log.close()
    return tmp_path / "store"


def is_told(answer: tuple[int, list[str]], code: int, cause: str) -> bool:
    """Whether it is the one error of three lines, with this code."""
    lines = answer[1]
    assert [line.split(":")[0] for line in lines] == ["error", "cause", "try"], lines
    assert cause in lines[1], lines
    return answer[0] == code


@pytest.mark.parametrize(
    "words", [("stats",), ("audit",), ("rebuild",), ("export", "--out", "new")]
)
def test_a_path_that_is_no_store_is_told_at_once(
    keelog: Keelog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    for name, why in (("nosuch", "does not exist"), ("file", "is a file"), ("empty", "holds no")):
        assert is_told(keelog(*words, name), 1, f"[KEELOG_NOT_A_STORE] {tmp_path / name} {why}")
    assert not (tmp_path / "new").exists()


def test_a_topic_that_is_not_there_ends_with_3_at_once(keelog: Keelog, root: Path) -> None:
    for words in (("stats", root), ("export", root, "--out", root.parent / "new")):
        answer = keelog(*words, "--topics", "nosuch", *SETTING_OPTIONS)
        assert is_told(answer, 3, "[KEELOG_UNKNOWN_TOPIC] there is no topic 'nosuch'")


def test_a_node_that_is_away_ends_with_4_at_once(keelog: Keelog, tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        away = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        for words in (("stats", away), ("export", away, "--out", tmp_path / "new")):
            assert is_told(keelog(*words), 4, "[KEELOG_NODE_UNREACHABLE]")


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (("--columns", "nosuch"), "[KEELOG_UNKNOWN_COLUMN]"),
        (("--tags", "||"), "[KEELOG_BAD_OPTION]"),
        (("--from", "2026-11-20T10:00", "--to", "2026-11-20"), "--from is later than --to"),
        (("--out", "file"), "[KEELOG_EXPORT_UNWRITABLE]"),
        (("--out", "file/below"), "[KEELOG_EXPORT_UNWRITABLE]"),
        (("--out", "full"), "[KEELOG_EXPORT_MISMATCH]"),
    ],
)
def test_what_an_export_cannot_do_is_told_at_once(
    keelog: Keelog,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: tuple[str, ...],
    cause: str,
) -> None:
    monkeypatch.chdir(root.parent)
    Path("file").touch()
    Path("full").mkdir()
    Path("full/foreign").touch()
    code = 1 if "--out" in options else 2
    assert is_told(keelog("export", root, "--out", "new", *options), code, cause)


def test_an_export_while_another_writes_to_its_folder_ends_with_6(
    keelog: Keelog, root: Path
) -> None:
    out = root.parent / "out"
    with ExportFolder(str(out)).locked():
        assert is_told(keelog("export", root, "--out", out), 6, "[KEELOG_EXPORT_BUSY]")


def test_an_export_with_nothing_new_needs_no_spark(keelog: Keelog, root: Path) -> None:
    out = root.parent / "out"
    export_here(str(root), str(out))
    assert keelog("export", root, "--out", out)[0] == 0


def test_a_page_that_cannot_be_written_is_told_before_the_figures_are_counted(
    keelog: Keelog, root: Path
) -> None:
    for place, why in (("no/page.html", "No such file"), ("store", "Is a directory")):
        page = root.parent / place
        answer = keelog("stats", root, "--report", page)
        assert is_told(answer, 1, why)
        assert answer[1][0] == f"error: cannot write {page}"


def test_a_report_that_cannot_be_written_is_told_before_the_audit(
    keelog: Keelog, root: Path
) -> None:
    file = root.parent / "file"
    file.touch()
    for folder in (file, file / "below" / "deep"):
        answer = keelog("audit", root, "--report", folder)
        assert is_told(answer, 1, "Not a directory")
        assert answer[1][0] == f"error: cannot write {folder}"
    assert not list(root.parent.glob("tmp*"))


def test_where_a_rebuild_cannot_write_is_told_at_once(keelog: Keelog, root: Path) -> None:
    file = root.parent / "file"
    file.touch()
    answer = keelog("rebuild", root, "--out", root.parent)
    assert is_told(answer, 2, f"[KEELOG_BAD_OPTION] {root.parent} exists")
    assert is_told(keelog("rebuild", root, "--out", file / "below"), 1, "Not a directory")
    lock = StoreLock.acquire(root)
    answer = keelog("rebuild", root)
    lock.release()
    assert is_told(answer, 6, "[KEELOG_STORE_LOCKED]")


@pytest.mark.parametrize("words", [("stats",), ("audit",), ("rebuild",), ("export", "--out", "o")])
def test_without_java_the_one_error_names_it(
    keelog: Keelog, root: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.chdir(root.parent)
    monkeypatch.setattr(session, "open_session", OPEN_SESSION)
    monkeypatch.setattr(session, "packed_java", lambda: None)
    for name in ("JAVA_HOME", "PATH"):
        monkeypatch.delenv(name, raising=False)
    assert is_told(keelog(*words, root), 1, "[KEELOG_JAVA_MISSING]")
