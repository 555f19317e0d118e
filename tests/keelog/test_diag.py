"""What goes into the file for support, without a node."""

import json
import zipfile
from pathlib import Path

import pytest
from click.testing import CliRunner

from keelog.cli.main import cli, run
from keelog.diag import LOG_LINES_MAX, ROCKETMQ_SYSCTL, last_lines, redacted, sysctl_hints
from node.access.audit import DONE, AuditEvent, AuditLog
from node.access.users_file import write_users
from protocol.access.users import AccessTable, User
from tests.support.golden import GetStore

NOWHERE = "tcp://127.0.0.1:9"


def test_a_store_without_a_node_is_described(golden: GetStore, tmp_path: Path) -> None:
    out = tmp_path / "diag.zip"
    words = ["diag", str(golden("small-clean")), "-o", str(out), "--node", NOWHERE, "--json"]
    result = CliRunner().invoke(cli, words, standalone_mode=False)
    assert result.exception is None
    (problem,) = json.loads(result.stdout)["problems"]
    assert problem.startswith(f"no status and no metrics, nobody answers at {NOWHERE}")
    with zipfile.ZipFile(out) as zip_:
        checkpoint = json.loads(zip_.read("store/checkpoint.json"))
        files = json.loads(zip_.read("store/files.json"))
        assert json.loads(zip_.read("problems.json")) == [problem]
    assert checkpoint["physic_msg_timestamp"] > 1_600_000_000_000
    assert files["count"] == len(files["files"]) > 3


def test_of_users_the_names_of_files_alone_go_in(golden_copy: GetStore, tmp_path: Path) -> None:
    store, out = golden_copy("small-clean"), tmp_path / "diag.zip"
    write_users(store, AccessTable({"canary-name": User("canary-name", "canary-secret")}))
    AuditLog(store).write(AuditEvent("command", "canary", "", "create_user", "", DONE), 0)
    words = ["diag", str(store), "-o", str(out), "--node", NOWHERE, "--json"]
    assert CliRunner().invoke(cli, words, standalone_mode=False).exception is None
    with zipfile.ZipFile(out) as zip_:
        assert b"auth/users.json" in zip_.read("store/files.json")
        assert not [name for name in zip_.namelist() if b"canary" in zip_.read(name)]


def test_a_file_that_is_there_is_left_alone(golden: GetStore, tmp_path: Path) -> None:
    out = tmp_path / "mine.zip"
    out.write_text("mine")
    assert run(["diag", str(golden("small-clean")), "-o", str(out), "--node", NOWHERE]) == 1
    assert out.read_text() == "mine"


def test_with_neither_node_nor_store_there_is_no_file_and_the_store_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "diag.zip"
    assert run(["diag", "-o", str(out), "--node", NOWHERE]) == 4
    assert not out.exists()
    assert "try: name the store: keelog diag ./store -o FILE" in capsys.readouterr().err


def test_a_nodes_address_with_a_credential_is_told_without_it(
    golden: GetStore, tmp_path: Path
) -> None:
    out = tmp_path / "diag.zip"
    url = "tcp://me:s3cret-word@127.0.0.1:9"
    words = ["diag", str(golden("small-clean")), "-o", str(out), "--node", url, "--json"]
    result = CliRunner().invoke(cli, words, standalone_mode=False)
    assert result.exception is None
    with zipfile.ZipFile(out) as zip_:
        for name in zip_.namelist():
            assert b"s3cret-word" not in zip_.read(name), name
    assert "s3cret-word" not in result.stdout


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("password=abc rest", "password=*** rest"),
        ("Authorization: Bearer abc rest", "Authorization: *** rest"),
        ('{"secret_key": "abc", "a": 1}', '{"secret_key": "***", "a": 1}'),
        ("DB_PASSWORD=a,b;c&d rest", "DB_PASSWORD=*** rest"),
        ("AWS_SECRET_ACCESS_KEY='it is \"x\"' rest", "AWS_SECRET_ACCESS_KEY='***' rest"),
        (r'cause="token=\"a b\" x"', r'cause="token=\"***" x"'),
        ("SECRET_KEY_BASE = abc", "SECRET_KEY_BASE = ***"),
        ("GET /x?api_key=abc&y=1 HTTP/1.1", "GET /x?api_key=*** HTTP/1.1"),
        ("at https://me:abc@host/x", "at https://***@host/x"),
        ("tcp://:abc@host:1 and s3://bucket/x", "tcp://***@host:1 and s3://bucket/x"),
        ("tokens were counted: 3", "tokens were counted: 3"),
        ("password:", "password:"),
        ("INFO writer log recovered: end 0", "INFO writer log recovered: end 0"),
    ],
)
def test_what_looks_like_a_credential_is_blacked_out(line: str, shown: str) -> None:
    assert redacted(line) == shown


def test_of_a_log_the_last_lines_are_kept_and_long_ones_cut(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("".join(f"{number}\n" for number in range(3000)) + "x" * 10_000)
    lines = last_lines(log).decode().splitlines()
    assert (len(lines), lines[0], len(lines[-1])) == (LOG_LINES_MAX, "2001", 2000)


def test_kernel_settings_stand_beside_those_of_rocketmq(tmp_path: Path) -> None:
    (tmp_path / "vm").mkdir()
    (tmp_path / "vm" / "swappiness").write_text("60\n")
    rows = {row["name"]: row for row in sysctl_hints(tmp_path)}
    assert rows.keys() == ROCKETMQ_SYSCTL.keys()
    shown = rows["vm.swappiness"]
    assert (shown["here"], shown["rocketmq"], shown["same"]) == (60, 1, False)
    assert rows["vm.max_map_count"]["here"] is None
