"""A replica's store is promoted, demoted and rewound: what is noted, refused, kept and cut."""

import json
from pathlib import Path

import pytest

from keelog.bench.queue_checks import verify_deep
from keelog.replication.roles import AcknowledgedLost, MasterLives, demote, promote, rewind
from node.runtime.run_files import read_follow_state, write_follow_state
from node.runtime.settings import load_settings
from node.store.checkpoints import load_epochs
from node.store.config.topics_file import Topic, TopicsFile
from node.store.identity.roles import (
    MASTER,
    REPLICA,
    StoreRole,
    WrongRole,
    check_role,
    load_role,
    save_role,
)
from node.store.opening import open_store
from protocol.access.credentials import INNER_FORM, Credentials
from protocol.errors import BadRequest, StoreDamaged, StoreLocked
from protocol.record.columns import scan
from protocol.remoting.bodies import KVTable
from protocol.remoting.java_json import write_body
from tests.support.asked_node import REFUSED, AskedNode
from tests.support.ha_master import HaMaster
from tests.support.master_log import SEGMENT_BYTES, MasterLog
from tests.support.node import RunningNode, wait_until
from tests.support.replica_process import ReplicaProcess
from tests.support.writer_process import RawClient, WriterProcess

pytestmark = pytest.mark.nodes

SETTINGS = load_settings([f"mapped_file_size_commit_log={SEGMENT_BYTES}"])
SMALL = (f"mapped_file_size_commit_log={SEGMENT_BYTES}", "disk_space_warning_level_ratio=100")


def a_replica(root: Path, count: int = 300) -> MasterLog:
    """A stopped replica that has acknowledged all of a log."""
    log = MasterLog()
    log.put_many(count)
    with (
        HaMaster(bytes(log.data), SEGMENT_BYTES) as master,
        ReplicaProcess(root, master.place) as replica,
    ):
        replica.wait_end(master.end)
        wait_until(lambda: master.reports[-1] == master.end, "not acknowledged")
        wait_until(lambda: replica.state.acknowledged == master.end, "not shown")
        assert replica.stop() == 0
    return log


def stored(root: Path) -> bytes:
    """The log of a stopped store up to its end."""
    with open_store(root, SETTINGS) as store:
        end = store.log.end
    return b"".join(p.read_bytes() for p in sorted((root / "commitlog").iterdir()))[:end]


def test_a_promoted_replica_takes_messages_after_the_masters(tmp_path: Path) -> None:
    root = tmp_path / "copy"
    log = a_replica(root)
    with pytest.raises(WrongRole, match="is a replica of"):
        check_role(root, follows="")
    done = promote(root, SETTINGS)
    assert (done.role, done.offset, done.lacks_bytes) == (MASTER, len(log.data), 0)
    assert load_epochs(root)[-1].epoch == done.epoch
    check_role(root, follows="")
    with pytest.raises(WrongRole, match="was promoted"):
        check_role(root, follows="127.0.0.1:10912")
    with WriterProcess(root, SMALL) as writer, RawClient(writer.endpoint) as client:
        receipt = client.ask("send", topic="orders", queue=0, body=b"of the new master")
        assert receipt["ok"]
        assert receipt["queue_offset"] == 300 // 4
        assert receipt["physical_offset"] >= len(log.data)
    assert stored(root).startswith(bytes(log.data))


def test_a_promotion_makes_the_topics_that_the_log_has_with_all_their_queues(
    tmp_path: Path,
) -> None:
    root = tmp_path / "copy"
    a_replica(root)  # its master gave it no table of topics
    TopicsFile(root).put([Topic("orders", 2, 1, retention_hours=9)], 1)
    done = promote(root, SETTINGS)
    assert done.topics == ("orders",)
    wanted = Topic("orders", 4, 4, retention_hours=9)
    assert TopicsFile(root).topics == {"orders": wanted}


def test_files_of_a_queue_that_cannot_be_read_stop_no_promotion(tmp_path: Path) -> None:
    root = tmp_path / "copy"
    log = a_replica(root)
    state = read_follow_state(root)._replace(topics_end=len(log.data))
    write_follow_state(root, state)
    folder = root / "consumequeue" / "orders" / "0"
    folder.mkdir(parents=True)
    for number in (0, 7):  # the files between are missing
        path = folder / f"{number * SETTINGS.queue_file_bytes:020d}"
        path.write_bytes(b"x" * SETTINGS.queue_file_bytes)
    done = promote(root, SETTINGS)
    assert (done.role, done.topics) == (MASTER, ("orders",))


def test_a_promotion_leaves_out_a_topic_that_was_removed_at_the_master(tmp_path: Path) -> None:
    root = tmp_path / "copy"
    log = a_replica(root)
    # The table was taken when all of the log was there, and the topic is not in it.
    state = read_follow_state(root)._replace(topics_end=len(log.data))
    write_follow_state(root, state)
    assert promote(root, SETTINGS).topics == ()
    assert TopicsFile(root).topics == {}


def test_a_topic_whose_entry_is_lost_keeps_its_queues_when_a_client_makes_it_again(
    tmp_path: Path,
) -> None:
    root = tmp_path / "copy"
    a_replica(root)
    promote(root, SETTINGS)
    (root / "config" / "topics.json").unlink()
    with WriterProcess(root, SMALL) as writer, RawClient(writer.endpoint) as client:
        assert client.ask("create_topic", topic="orders", queues=2)["ok"]
    made = TopicsFile(root).topics["orders"]
    assert (made.read_queues, made.write_queues) == (4, 4)


def test_a_replica_behind_what_it_acknowledged_is_not_promoted(tmp_path: Path) -> None:
    root = tmp_path / "copy"
    log = a_replica(root)
    role = load_role(root)
    assert role is not None
    assert role.acknowledged == len(log.data)
    save_role(root, role._replace(acknowledged=len(log.data) + 100))
    with pytest.raises(AcknowledgedLost, match="100 bytes are missing"):
        promote(root, SETTINGS)
    found = load_role(root)
    assert found is not None
    assert found.role == REPLICA


def test_a_store_whose_role_is_damaged_is_served_in_none_until_somebody_says_which(
    tmp_path: Path,
) -> None:
    root = tmp_path / "copy"
    log = a_replica(root)
    path = root / "keelog" / "role"
    whole = path.read_bytes()
    for damaged in (b"", b"garbage\0\1", whole[:-3], whole.replace(b"replica", b"master_")):
        path.write_bytes(damaged)
        for follows in ("", "127.0.0.1:10912"):
            with pytest.raises(StoreDamaged, match="checksum does not agree"):
                check_role(root, follows)
        with pytest.raises(StoreDamaged, match="role"):
            promote(root, SETTINGS)
        assert path.read_bytes() == damaged
    assert stored(root) == bytes(log.data)
    path.rename(tmp_path / "aside")
    log.put_many(10)
    with (
        HaMaster(bytes(log.data), SEGMENT_BYTES) as master,
        ReplicaProcess(root, master.place) as replica,
    ):
        replica.wait_end(master.end)
        assert replica.stop() == 0
    with pytest.raises(WrongRole, match="is a replica of"):
        check_role(root, follows="")


def test_only_a_replica_is_promoted_and_only_when_it_has_stopped(tmp_path: Path) -> None:
    with WriterProcess(tmp_path / "store", SMALL) as writer:
        with pytest.raises(StoreLocked):
            promote(writer.root, SETTINGS)
        writer.stop()
        with pytest.raises(WrongRole, match="is not a replica"):
            promote(writer.root, SETTINGS)


def test_a_demoted_master_follows_the_one_that_has_its_log(tmp_path: Path) -> None:
    root = tmp_path / "copy"
    log = a_replica(root)
    promote(root, SETTINGS)
    log.put_many(50, "of the other")
    with HaMaster(bytes(log.data), SEGMENT_BYTES) as master:
        assert demote(root, master.place) == StoreRole(REPLICA, master.place)
        with ReplicaProcess(root, master.place) as replica:
            replica.wait_end(master.end)
            assert replica.stop() == 0
    assert stored(root) == log.data


@pytest.mark.parametrize("part", [2, 3, 10])
def test_a_rewound_replica_follows_a_master_that_lost_its_end(tmp_path: Path, part: int) -> None:
    root = tmp_path / "copy"
    log = a_replica(root)
    columns = scan(bytes(log.data[:SEGMENT_BYTES]), 0).columns
    starts = [int(at) for at in columns.physical_offset]
    other = MasterLog()
    other.put_many(300 - 300 // part)
    cut = len(other.data)
    with pytest.raises(BadRequest, match="no record begins"):
        rewind(root, starts[1] + 1, SETTINGS)
    before = stored(root)
    plan = rewind(root, cut, SETTINGS)
    assert (plan.applied, plan.records, plan.bytes) == (False, 300 // part, len(log.data) - cut)
    assert stored(root) == before
    done = rewind(root, cut, SETTINGS, apply=True)
    kept = Path(done.kept_in)
    assert b"".join(p.read_bytes() for p in sorted(kept.glob("0*"))) == log.data[cut:]
    assert json.loads((kept / "report.json").read_text())["records"] == 300 // part
    assert stored(root) == log.data[:cut]
    assert rewind(root, cut, SETTINGS, apply=True).records == 0
    other.put_many(400, "another history")
    with (
        HaMaster(bytes(other.data), SEGMENT_BYTES) as master,
        ReplicaProcess(root, master.place) as replica,
    ):
        replica.wait_end(master.end)
        assert replica.stop() == 0
    assert stored(root) == other.data


def test_a_rewound_replica_is_promoted_without_a_start_between(tmp_path: Path) -> None:
    root = tmp_path / "copy"
    a_replica(root)
    kept = MasterLog()
    kept.put_many(200)
    cut = len(kept.data)
    assert rewind(root, cut, SETTINGS, apply=True).records == 100
    done = promote(root, SETTINGS)
    assert (done.role, done.offset, done.acknowledged) == (MASTER, cut, cut)
    assert stored(root) == kept.data


def test_queues_and_index_of_a_rewound_store_follow_at_the_next_start(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with RunningNode(root, queue_workers=1, readers=1) as node:
        for number in range(30):
            receipt = node.client.send("orders", b"%d" % number, keys=f"k{number}")
            if number == 20:
                cut = receipt.physical_offset
        node.wait_dispatched()
    assert rewind(root, cut, load_settings([]), apply=True).records == 10
    with RunningNode(root, queue_workers=1, readers=1) as node:
        assert node.log_state().appended == cut
        again = node.client.send("orders", b"again", keys="again")
        assert again.physical_offset == cut
        node.wait_dispatched()
    with open_store(root, load_settings([])) as store:
        records = sum(len(found) for found in store.log.columns(0))
        units = sum(
            found.max_offset - found.min_offset
            for queue in store.queues()
            if (found := store.queue(queue.topic, queue.queue_id)) is not None
        )
    assert (records, units) == (21, 21)
    code, said = verify_deep(root)
    assert code == 0, said


def test_a_master_that_lets_nobody_in_lives_and_is_promoted_past_by_force_alone(
    tmp_path: Path,
) -> None:
    """Its users keep this node out: that is no sign of its end."""
    root = tmp_path / "copy"
    a_replica(root)
    with AskedNode(lambda *_: REFUSED) as master:
        state = read_follow_state(root)
        write_follow_state(root, state._replace(remoting=master.place))
        with pytest.raises(MasterLives, match="check signature failed") as caught:
            promote(root, SETTINGS)
        assert "inner_client_authentication_credentials_file" in caught.value.reason
        assert "--force" in caught.value.hint
        assert promote(root, SETTINGS, though_alive=True).role == MASTER


def test_a_master_with_users_that_is_asked_with_credentials_says_how_far_it_is(
    tmp_path: Path,
) -> None:
    root, inner = tmp_path / "copy", tmp_path / "inner.json"
    inner.touch(0o600)
    inner.write_bytes(INNER_FORM.text(Credentials("inner", "inner-secret")))
    a_replica(root)
    body = write_body(
        KVTable({"commitLogMinOffset": "0", "commitLogMaxOffset": "7"}), standard=True
    )
    settings = load_settings([f"inner_client_authentication_credentials_file={inner}"], SETTINGS)
    with AskedNode(lambda *_: (0, None, body)) as master:
        write_follow_state(root, read_follow_state(root)._replace(remoting=master.place))
        with pytest.raises(MasterLives, match="its log ends at 7"):
            promote(root, settings)
        assert master.are_signed("inner", "inner-secret")
    assert promote(root, settings).role == MASTER
