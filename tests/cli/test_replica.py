"""`keelog replica`: a stopped replica is promoted, demoted and rewound from the command line."""

import json
from pathlib import Path

import pytest

from keelog.cli import failures
from keelog.cli.main import run
from keelog.cli.node.state import following_lines
from keelog.text import time_text
from node.runtime.process import now_ms
from node.runtime.run_files import CONNECTING, FOLLOWING, FollowState, write_follow_state
from node.runtime.state_page import run_dir
from node.supervisor.status import following_check
from tests.support.ha_master import HaMaster
from tests.support.master_log import SEGMENT_BYTES, MasterLog
from tests.support.node import wait_until
from tests.support.replica_process import ReplicaProcess

pytestmark = pytest.mark.process


def test_a_lag_is_not_shown_as_current_while_the_master_is_away(tmp_path: Path) -> None:
    run_dir(tmp_path).mkdir(parents=True)
    state = FollowState(FOLLOWING, master="m:10912", contact_ms=now_ms(), lag_bytes=7, lag_ms=200)
    assert "following, lag 7 B and 0.2 s" in "\n".join(following_lines(state._asdict()))
    away = state._replace(
        state=CONNECTING, disconnected="refused", disconnected_ms=now_ms() - 90_000
    )
    shown = "\n".join(following_lines(away._asdict()))
    assert "connecting, lag unknown, its master was heard last 2" in shown
    assert f"without its master since {time_text(away.disconnected_ms)}: refused" in shown
    never = FollowState(CONNECTING, master="m:10912")
    assert "was never heard" in "\n".join(following_lines(never._asdict()))
    write_follow_state(tmp_path, away)
    ok, words = following_check(tmp_path)
    assert not ok
    assert "without it for 9" in words


def test_a_replica_is_promoted_demoted_and_rewound(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = MasterLog()
    log.put_many(50)
    cut = len(log.data)
    log.put_many(10, "more")
    root = tmp_path / "copy"
    with (
        HaMaster(bytes(log.data), SEGMENT_BYTES) as master,
        ReplicaProcess(root, master.place) as replica,
    ):
        replica.wait_end(master.end)
        wait_until(lambda: replica.state.acknowledged == master.end, "not acknowledged")
        assert run(["replica", "promote", str(root)]) == failures.LOCKED
        assert replica.stop() == 0
    capsys.readouterr()
    assert run(["replica", "promote", str(root), "--json"]) == failures.OK
    done = json.loads(capsys.readouterr().out)
    assert (done["role"], done["offset"]) == ("master", len(log.data))
    assert done["topics"] == ["orders"]
    assert run(["serve", str(root), "--follow", "127.0.0.1:1"]) == failures.FAILED
    assert "was promoted" in capsys.readouterr().err
    assert run(["replica", "demote", str(root), "--follow", "127.0.0.1:1"]) == failures.OK
    capsys.readouterr()
    assert run(["replica", "rewind", str(root), "--to", str(cut), "--json"]) == failures.OK
    plan = json.loads(capsys.readouterr().out)
    assert (plan["applied"], plan["records"]) == (False, 10)
    words = ["replica", "rewind", str(root), "--to", str(cut), "--apply", "--json"]
    assert run(words) == failures.OK
    done = json.loads(capsys.readouterr().out)
    assert (done["applied"], done["records"], done["bytes"]) == (True, 10, len(log.data) - cut)
    assert Path(done["kept_in"]).is_dir()
