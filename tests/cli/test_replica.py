"""`keelog replica`: a stopped replica is promoted, demoted and rewound from the command line."""

import json
from pathlib import Path

import pytest

from keelog.cli import failures
from keelog.cli.main import run
from tests.support.ha_master import HaMaster
from tests.support.master_log import SEGMENT_BYTES, MasterLog
from tests.support.node import wait_until
from tests.support.replica_process import ReplicaProcess

pytestmark = pytest.mark.process


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
