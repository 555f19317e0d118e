"""The audit log: one line of JSON for an event, whatever it holds."""

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from node.access.audit import DONE, LINES_A_SECOND_MAX, REFUSED, AuditEvent, AuditLog

NOW = 1_700_000_000_123
EVENT = AuditEvent("remoting", "alice", "10.0.0.1", "310", "Topic:orders", REFUSED, "no entry")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keelog" / "auth" / "audit.log"


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_an_event_is_a_line_of_its_owners_file(tmp_path: Path, path: Path) -> None:
    log = AuditLog(tmp_path)
    log.write(EVENT, NOW)
    log.write(EVENT._replace(user="", outcome=DONE, reason=""), NOW)
    log.close()
    first, second = lines(path)
    assert first == {
        "time": "2023-11-14T22:13:20.123Z", "end": "remoting", "user": "alice",
        "address": "10.0.0.1", "operation": "310", "resource": "Topic:orders",
        "outcome": "refused", "reason": "no entry",
    }  # fmt: skip
    assert second.keys() == first.keys() - {"user", "reason"}
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_control_characters_make_no_line_and_reach_no_terminal(tmp_path: Path, path: Path) -> None:
    log = AuditLog(tmp_path)
    log.write(EVENT._replace(user='a"\n{"end":"forged"}\x1b[2J\x7f\x9b\u2028\ud800' * 100), NOW)
    log.close()
    text = path.read_bytes()
    assert text.count(b"\n") == 1
    assert all(0x20 <= byte < 0x7F for byte in text[:-1])
    (found,) = lines(path)
    assert found["end"] == "remoting"
    assert found["user"].startswith('a"\n')


def test_a_renamed_file_is_left_and_a_new_one_begun(tmp_path: Path, path: Path) -> None:
    log = AuditLog(tmp_path)
    log.write(EVENT, NOW)
    path.rename(path.with_name("audit.log.1"))
    log.write(EVENT, NOW)
    path.unlink()
    log.write(EVENT, NOW)
    log.close()
    assert len(lines(path)) == len(lines(path.with_name("audit.log.1"))) == 1


def test_two_writers_append_to_one_file(tmp_path: Path, path: Path) -> None:
    several = [AuditLog(tmp_path) for _ in range(2)]
    for number in range(20):
        several[number % 2].write(EVENT._replace(user=str(number)), NOW)
    for log in several:
        log.close()
    assert [int(one["user"]) for one in lines(path)] == list(range(20))


def test_a_link_in_its_place_is_not_followed(tmp_path: Path, path: Path) -> None:
    path.parent.mkdir(parents=True)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="symbolic links"):
        AuditLog(tmp_path).write(EVENT, NOW)
    assert not (tmp_path / "elsewhere").exists()


def test_who_is_refused_all_the_time_fills_no_disk_and_hides_no_change(
    tmp_path: Path, path: Path
) -> None:
    log = AuditLog(tmp_path)
    for _ in range(LINES_A_SECOND_MAX + 50):
        log.write(EVENT, NOW)
    log.write(EVENT._replace(operation="create_user", outcome=DONE), NOW)
    log.write(EVENT, NOW + 1000)
    log.close()
    found = lines(path)
    assert len(found) == LINES_A_SECOND_MAX + 2
    assert found[-2]["operation"] == "create_user"
    assert found[-2]["left_out"] == "50"
    assert "left_out" not in found[-1]


def test_no_field_of_an_event_can_hold_a_secret() -> None:
    assert AuditEvent._fields == (
        "end", "user", "address", "operation", "resource", "outcome", "reason",
    )  # fmt: skip
