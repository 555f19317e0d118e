"""What a node asks others is signed; what a master refuses is told once, with what to do."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from keelog.replication.keeper.controllers import Controllers, HeartBeats
from keelog.replication.keeper.loop import Keeper, _replication_of
from keelog.replication.replica.follower import MasterFollower
from keelog.replication.replica.master_link import (
    ConnectJob,
    MasterFacts,
    MasterRefuses,
    MasterSays,
    ask_facts,
)
from keelog.replication.replica.master_users import fetch_users
from keelog.replication.replica.tables import (
    PARTS,
    REFUSED_S,
    MasterTables,
    TablesJob,
    fetch_tables,
)
from node.access.answers import UserDesk
from node.access.audit import AuditLog
from node.access.own_credentials import OwnCredentials, OwnLogin
from node.access.user_table import OwnedUserTable
from node.access.users_file import read_users, write_users
from node.runtime.run_files import MasterPlace
from protocol.access.changes import acls_answer, users_answer
from protocol.access.credentials import INNER_FORM, Credentials
from protocol.access.users import AccessTable, User, UserType
from protocol.errors import ServiceNotAvailable
from protocol.remoting.bodies import KVTable
from protocol.remoting.headers import RemotingHeader
from protocol.remoting.java_json import write_body
from tests.support.asked_node import REFUSED, AskedNode, Reply
from tests.support.node import wait_until

USER, SECRET = "inner", "inner-secret"
STEP = "inner_client_authentication_credentials_file has to name a Super user"
INNER = User(USER, SECRET, UserType.SUPER)
MASTERS = AccessTable({USER: INNER, "alice": User("alice", "long-enough")}, {}, 1)


def refuse(header: RemotingHeader, body: bytes) -> Reply:
    return REFUSED


def with_users(table: Callable[[], AccessTable], with_secret: bool = True) -> Callable[..., Reply]:
    """A master that says which users it has; `table` is called for each question."""

    def decide(header: RemotingHeader, body: bytes) -> Reply:
        match header.code:
            case 3005:
                return 0, None, users_answer(table(), "", with_secret, True) or b""
            case 3010:
                return 0, None, acls_answer(table(), "", "") or b""
        return 0, None, b""

    return decide


@pytest.fixture
def own(tmp_path: Path) -> OwnCredentials:
    path = tmp_path / "inner.json"
    path.touch(0o600)
    path.write_bytes(INNER_FORM.text(Credentials(USER, SECRET)))
    return OwnCredentials(str(path))


def test_each_question_to_a_master_is_signed(own: OwnCredentials) -> None:
    table = KVTable({"commitLogMinOffset": "0", "commitLogMaxOffset": "700"})
    body = write_body(table, standard=True)
    with AskedNode(lambda *_: (0, None, body)) as master:
        fetch_tables(master.place, PARTS, None, own)
        assert ask_facts(master.place, True, None, own) == MasterFacts(0, 700)
        assert {21, 201, 43, 45, 28, 26} <= set(master.codes())
        assert master.are_signed(USER, SECRET)


def test_without_credentials_nothing_is_added() -> None:
    with AskedNode() as master:
        fetch_tables(master.place)
        assert master.asked
        assert not any("AccessKey" in header.ext for header, _ in master.asked)


def test_questions_and_heart_beats_to_controllers_are_signed(own: OwnCredentials) -> None:
    fields = {"masterHaAddress": "127.0.0.1:1"}
    with AskedNode(ext=fields) as controller:
        fields["controllerLeaderAddress"] = controller.place
        asked = Controllers((controller.place,), None, own)
        asked.ask(1005, {"brokerName": "b"})
        asked.close()
        beats = HeartBeats((controller.place,), lambda: {"brokerId": "1"}, None, own)
        wait_until(lambda: beats.taken == 1, "no heart-beat")
        beats.stop()
        assert _replication_of(controller.place, OwnLogin(None, own)) == "127.0.0.1:1"
        assert controller.are_signed(USER, SECRET)


def test_a_master_that_refuses_is_told_of_once_and_the_line_says_what_to_do(
    tmp_path: Path, own: OwnCredentials, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "config").mkdir()
    with AskedNode(refuse) as master:
        tables = MasterTables(tmp_path, Mock(), Mock(), 0.0, None, own)
        tables.close()
        for _ in range(3):
            job = TablesJob(master.place, PARTS, 0, None, own)
            job.run()
            assert (job.facts, job.is_refused) == (None, True)
            tables._thread = Mock(collect=lambda job=job: job)
            tables.turn(0.0, "", 0)
        assert len(master.asked) == 3, "one failed login a round"
    assert tables._look_at == REFUSED_S
    assert len(caplog.records) == 1, caplog.text
    assert all("check signature failed." in why and STEP in why for why in tables.why.values())


def test_a_master_that_says_nothing_of_its_log_is_no_master_that_is_away(
    own: OwnCredentials, caplog: pytest.LogCaptureFixture
) -> None:
    with AskedNode(refuse) as master:
        said = ask_facts(master.place, True, None, own)
        assert isinstance(said, MasterRefuses)
        assert STEP in said.why
        job = ConnectJob(MasterPlace(master.place, master.place), None, own)
        job.run()
        assert (job.facts, job.refused) == (None, said.why)
        assert job.connected is not None
        follower = MasterFollower(Mock(is_empty=True, end=0), Mock(), 0.0)
        for _ in range(3):
            follower._note_refusal(job.refused)
        follower._begin_empty(Mock(), None, 0.0)
        assert STEP in follower.waits_for[0]
        job.connected.close()
    assert len(caplog.records) == 1
    assert ask_facts(master.place, True, None, own) is None, "now it is away"


# -- the users of a master ------------------------------------------------------------------------


def users_at(place: str, own: OwnCredentials) -> AccessTable:
    return fetch_users(place, 5.0, None, own).over(AccessTable(), 5)


def test_users_and_lists_come_from_a_master_on_the_same_machine(own: OwnCredentials) -> None:
    with AskedNode(with_users(lambda: MASTERS)) as master:
        assert set(users_at(master.place, own).users) == {USER, "alice"}
        assert master.codes() == [3005, 3010, 3005]
        assert master.are_signed(USER, SECRET)


@pytest.mark.attack(69)
def test_nobody_is_asked_where_others_could_read_the_answer(own: OwnCredentials) -> None:
    for tls in (None, Mock(verifies=False)):
        with pytest.raises(MasterSays, match="by TLS alone"):
            fetch_users("192.0.2.7:10911", 5.0, tls, own)
    with pytest.raises(MasterSays, match="without a login"):
        fetch_users("127.0.0.1:1", 5.0, None, None)


def test_users_that_change_in_between_are_asked_for_again(own: OwnCredentials) -> None:
    tables = [MASTERS, MASTERS, AccessTable({USER: INNER}, {}, 2)]
    with (
        AskedNode(with_users(lambda: tables.pop(0))) as master,
        pytest.raises(MasterSays, match="just changed"),
    ):
        fetch_users(master.place, 5.0, None, own)


@pytest.fixture
def desk(tmp_path: Path) -> UserDesk:
    """Of a replica with a user of its own."""
    write_users(tmp_path, AccessTable({"mine": User("mine", "long-enough")}, {}, 4))
    return UserDesk(OwnedUserTable(tmp_path), AuditLog(tmp_path))


def a_round(root: Path, desk: UserDesk, place: str, own: OwnCredentials) -> dict[str, str]:
    """What one round made of the users; returns why parts did not come."""
    (root / "config").mkdir(exist_ok=True)
    tables = MasterTables(root, Mock(), Mock(), 0.0, None, own, desk)
    tables.close()
    job = TablesJob(place, ("users",), 0, None, own)
    job.run()
    tables._thread = Mock(collect=lambda: job)
    tables.turn(0.0, "", 0)
    return tables.why


def test_a_replicas_own_users_give_way_to_those_of_its_master_and_go_with_them(
    tmp_path: Path, desk: UserDesk, own: OwnCredentials
) -> None:
    with AskedNode(with_users(lambda: MASTERS)) as master:
        assert a_round(tmp_path, desk, master.place, own)["users"] == ""
        assert set(read_users(tmp_path)[0].users) == {USER, "alice"}
        stamp = read_users(tmp_path)[1]
        a_round(tmp_path, desk, master.place, own)
        assert read_users(tmp_path)[1] == stamp, "nothing new is not written"
    with AskedNode(with_users(lambda: AccessTable({USER: INNER}, {}, 9))) as master:
        a_round(tmp_path, desk, master.place, own)
        assert set(read_users(tmp_path)[0].users) == {USER}
    log = (tmp_path / "keelog/auth/audit.log").read_text()
    assert log.count('"follow_users"') == 2
    assert "long-enough" not in log
    desk.close()


@pytest.mark.parametrize("kind", ["away", "refuses", "no passwords", "no users", "other secret"])
def test_a_replica_keeps_its_users_unless_the_master_gives_all_of_its_own(
    tmp_path: Path, desk: UserDesk, own: OwnCredentials, kind: str
) -> None:
    decide = {
        "away": refuse,
        "refuses": refuse,
        "no passwords": with_users(lambda: MASTERS, with_secret=False),
        "no users": with_users(AccessTable),
        "other secret": with_users(
            lambda: AccessTable({USER: replace(INNER, secret="another-one")})
        ),
    }[kind]
    with AskedNode(decide) as master:
        place = "127.0.0.1:9" if kind == "away" else master.place
        why = a_round(tmp_path, desk, place, own)["users"]
    assert why
    assert set(read_users(tmp_path)[0].users) == {"mine"}
    desk.close()


@pytest.mark.attack(70)
def test_a_file_of_users_that_cannot_be_used_is_not_overwritten(
    tmp_path: Path, desk: UserDesk, own: OwnCredentials
) -> None:
    path = tmp_path / "keelog/auth/users.json"
    path.write_text("broken")
    with AskedNode(with_users(lambda: MASTERS)) as master:
        assert a_round(tmp_path, desk, master.place, own)["users"]
    assert path.read_text() == "broken"
    desk.close()


def test_a_user_who_may_read_tables_and_no_passwords_gets_the_tables(own: OwnCredentials) -> None:
    def decide(header: RemotingHeader, body: bytes) -> Reply:
        return REFUSED if header.code == 3005 else (0, None, b"")

    with AskedNode(decide) as master:
        found, is_refused = fetch_tables(master.place, ("users", "offsets"), None, own)
    assert (is_refused, found["offsets"]) == (False, {"offsetTable": {}})
    assert STEP in str(found["users"])


def test_a_keeper_that_a_master_keeps_out_knocks_again_after_seconds_not_each_look(
    own: OwnCredentials,
) -> None:
    keeper = Mock(_own=OwnLogin(None, own), _knock_at=0.0, _why="as before")
    with AskedNode(refuse) as master:
        for now in (1.0, 1.5, 5.9, 6.0):
            with pytest.raises(ServiceNotAvailable):
                Keeper._follow(keeper, Mock(master=master.place), now)
        assert len(master.asked) == 2
