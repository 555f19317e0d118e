"""A stranger at each port of a node that listens at all addresses, from another network namespace.

What is asked, and how, is in `scripts/security/from_outside.py`, which prints it as a table.
"""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from scripts.security import from_outside
from scripts.security.from_outside import Cable, Table
from scripts.security.guarded import OPEN
from scripts.security.peers import PeerVerdict

pytestmark = [pytest.mark.nodes, pytest.mark.timeout(300)]

SERVED, REFUSED, CLOSED = PeerVerdict.SERVED, PeerVerdict.REFUSED, PeerVerdict.CLOSED
OWN_ENDS = ("control", "writer", "reader")
REMOTING = ("remoting", "remoting - 2")
STRANGER, ENCRYPTED, FALSE, USER, FOREIGN = range(5)
"""The columns: callers in the order of `from_outside.callers`."""


@pytest.fixture(scope="module")
def cable() -> Iterator[Cable]:
    if why := from_outside.missing():
        pytest.skip(why)
    try:
        with from_outside.elsewhere() as found:
            yield found
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespace here: {error.stderr.decode().strip()}")


@pytest.fixture(scope="module")
def guarded(cable: Cable, tmp_path_factory: pytest.TempPathFactory) -> Table:
    return from_outside.look_at_guarded_node(cable, tmp_path_factory.mktemp("guarded"))


def verdicts(table: Table, *ends: str) -> list[list[PeerVerdict]]:
    """By column: what each of these ends did."""
    rows = [[one.verdict for one in table[end].values()] for end in ends]
    return [list(column) for column in zip(*rows, strict=True)]


def test_a_node_beyond_loopback_without_a_login_does_not_start_and_says_what_helps(
    tmp_path: Path,
) -> None:
    code, said = from_outside.start_without_a_word(tmp_path)
    assert code == 2, said
    assert "keelog user create" in said
    assert OPEN in said
    assert not (tmp_path / "default").exists()


def test_at_a_node_that_is_open_on_purpose_a_stranger_does_everything(
    cable: Cable, tmp_path: Path
) -> None:
    table = from_outside.look_at_open_node(cable, tmp_path)
    assert {one.verdict for row in table.values() for one in row.values()} == {SERVED}


@pytest.mark.attack(1, 47, 55, 68)
def test_where_users_log_in_a_plain_stranger_is_nobodys_client_at_any_port(guarded: Table) -> None:
    assert set(verdicts(guarded, *guarded)[STRANGER]) == {CLOSED}


def test_encryption_alone_is_no_login(guarded: Table) -> None:
    columns = verdicts(guarded, *OWN_ENDS, *REMOTING, "http /metrics")
    assert set(columns[ENCRYPTED]) == set(columns[FALSE]) == {REFUSED}


@pytest.mark.attack(65)
def test_a_follower_comes_with_a_certificate_of_the_nodes_authority_or_gets_no_byte(
    guarded: Table,
) -> None:
    ((row,),) = [list(zip(*verdicts(guarded, "followers"), strict=True))]
    assert row[:4] == (CLOSED, CLOSED, CLOSED, SERVED)


def test_the_bare_verdicts_of_health_are_for_everybody_who_speaks_tls(guarded: Table) -> None:
    pages = verdicts(guarded, "http /livez", "http /readyz")
    assert pages[ENCRYPTED] == [SERVED, SERVED]
    said = guarded["http /readyz"]
    bare = next(words for name, (_, words) in said.items() if "encrypted" in name)
    assert bare == "1 lines"


def test_the_user_is_served_at_every_port(guarded: Table) -> None:
    assert set(verdicts(guarded, *guarded)[USER]) == {SERVED}


@pytest.mark.parametrize("end", ["writer", "reader", *REMOTING])
def test_the_user_gets_nothing_of_anothers_topic_at_any_end(guarded: Table, end: str) -> None:
    ((verdict,),) = [verdicts(guarded, end)[FOREIGN]]
    assert verdict is REFUSED, guarded[end]
