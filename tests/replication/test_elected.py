"""A store is made the master of an epoch, or a copy of its master: what is noted, cut and kept."""

from pathlib import Path

import pytest

from keelog.replication.replica.comparison import NoCommonEpoch
from keelog.replication.roles import AcknowledgedLost, OldEpoch, follow, lead
from node.store.config.topics_file import TopicsFile
from node.store.identity.roles import (
    MASTER,
    REPLICA,
    StoreRole,
    check_role,
    load_master_epochs,
    load_role,
    save_master_epochs,
    save_role,
)
from node.store.opening import open_store
from protocol.ha import MasterEpoch, MasterEpochs, MasterGreeting
from protocol.record.columns import scan
from tests.replication.test_roles import SETTINGS, SMALL, stored
from tests.support.writer_process import RawClient, WriterProcess

pytestmark = pytest.mark.process

MASTER_PLACE = "127.0.0.1:10912"


def write(root: Path, count: int) -> int:
    """Appends records by a writer that stops in order; returns the end of the log."""
    with WriterProcess(root, SMALL) as writer:
        with RawClient(writer.endpoint) as client:
            for number in range(count):
                assert client.ask("send", topic="t", queue=0, body=b"%06d" % number * 20)["ok"]
        assert writer.stop() == 0
    return end_of(root)


def end_of(root: Path) -> int:
    with open_store(root, SETTINGS) as store:
        return store.log.end


def epochs(*pairs: tuple[int, int]) -> MasterEpochs:
    return tuple(MasterEpoch(*pair) for pair in pairs)


def test_the_first_epoch_owns_all_that_is_there_and_others_begin_at_the_end(tmp_path: Path) -> None:
    first = write(tmp_path, 50)
    assert lead(tmp_path, SETTINGS, 5) == first
    assert load_master_epochs(tmp_path) == epochs((5, 0))
    role = load_role(tmp_path)
    assert role is not None
    assert role.role == MASTER
    check_role(tmp_path, follows="")
    second = write(tmp_path, 50)
    assert lead(tmp_path, SETTINGS, 5) == second, "a start again in the same epoch"
    assert lead(tmp_path, SETTINGS, 7) == second
    assert load_master_epochs(tmp_path) == epochs((5, 0), (7, second))


def test_nobody_leads_in_an_epoch_below_that_of_the_log(tmp_path: Path) -> None:
    write(tmp_path, 5)
    lead(tmp_path, SETTINGS, 5)
    with pytest.raises(OldEpoch, match="says epoch 4, and epoch 5"):
        lead(tmp_path, SETTINGS, 4)
    assert load_master_epochs(tmp_path) == epochs((5, 0))


def test_a_replica_that_lacks_what_it_acknowledged_does_not_lead(tmp_path: Path) -> None:
    end = write(tmp_path, 5)
    save_role(tmp_path, StoreRole(REPLICA, MASTER_PLACE, 1, 0, end + 100))
    with pytest.raises(AcknowledgedLost):
        lead(tmp_path, SETTINGS, 5)
    assert load_master_epochs(tmp_path) == ()


def test_an_elected_replica_makes_the_topics_that_only_its_log_has(tmp_path: Path) -> None:
    write(tmp_path, 5)
    TopicsFile(tmp_path).remove("t", 1)
    lead(tmp_path, SETTINGS, 5)
    assert TopicsFile(tmp_path).topics == {}, "it was the master before: somebody removed it"
    save_role(tmp_path, StoreRole(REPLICA, MASTER_PLACE, 5, 0, 0))
    lead(tmp_path, SETTINGS, 6)
    assert list(TopicsFile(tmp_path).topics) == ["t"]


def test_an_old_master_cuts_what_the_new_one_does_not_have_and_keeps_it(tmp_path: Path) -> None:
    common = write(tmp_path, 50)
    lead(tmp_path, SETTINGS, 5)
    end = write(tmp_path, 30)
    log = stored(tmp_path)
    greeting = MasterGreeting(end + 10_000, epochs((5, 0), (6, common)))
    joined = follow(tmp_path, SETTINGS, MASTER_PLACE, greeting)
    assert (joined.end, joined.cut_bytes, joined.cut_records) == (common, end - common, 30)
    assert stored(tmp_path) == log[:common]
    kept = sorted(path for path in Path(joined.kept_in).iterdir() if path.name.isdigit())
    assert b"".join(path.read_bytes() for path in kept) == log[common:]
    role = load_role(tmp_path)
    assert role is not None
    assert (role.role, role.source) == (REPLICA, MASTER_PLACE)
    assert load_master_epochs(tmp_path) == epochs((5, 0))
    assert follow(tmp_path, SETTINGS, MASTER_PLACE, greeting)[:2] == (common, 0), "once is enough"


def test_a_log_may_be_cut_where_a_segment_was_closed(tmp_path: Path) -> None:
    end = write(tmp_path, 700)
    segment = int(SETTINGS.mapped_file_size_commit_log)
    assert end > segment, "more than a segment"
    lead(tmp_path, SETTINGS, 5)
    last = scan(stored(tmp_path)[:segment], 0).end
    greeting = MasterGreeting(last, epochs((5, 0)))
    assert follow(tmp_path, SETTINGS, MASTER_PLACE, greeting).end == last
    assert end_of(tmp_path) == last


def test_a_log_of_no_elected_master_does_not_follow_and_stays_as_it_is(tmp_path: Path) -> None:
    end = write(tmp_path, 20)
    save_master_epochs(tmp_path, epochs((2, 0)))
    with pytest.raises(NoCommonEpoch, match="no elected master wrote both logs"):
        follow(tmp_path, SETTINGS, MASTER_PLACE, MasterGreeting(9_000, epochs((3, 0))))
    assert end_of(tmp_path) == end
    assert load_role(tmp_path) is None
    assert load_master_epochs(tmp_path) == epochs((2, 0))
