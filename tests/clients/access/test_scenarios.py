"""RocketMQ's clients with credentials, unmodified, at a broker with ACL 2.0 and at a node with
users: what each may do with a list, and what it hears with a wrong secret."""

import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from subprocess import CompletedProcess
from typing import NamedTuple

import pytest

from keelog.gateway.guard import NOT_PROVED
from node.supervisor.bind import free_ports
from scripts.rivals.rocketmq import class_path, missing, start_name_server
from tests.clients.access.sides import (
    REFUSED,
    Credentials,
    LoginSide,
    Rights,
    broker_with_users,
    node_with_users,
)
from tests.clients.programs import BUILD_S, CLIENTS, RUN_S, Client, run_scenario
from tests.clients.sides import Side

QUEUES = 4
NAMES = ("java-5.5.0", "java-4.9.8", "go-2.1.2", "ali-ons-3.12.0", "rocketmq-0.4.4")
GROUPS = ("share", "tags", "retry")
BAD_SECRET = "secret-of-nobody"
SAYS_NO_REASON = "ali-ons-3.12.0"
"""It keeps to itself what a broker's refusal says."""
SAYS_NO_ROUTE = "go-2.1.2"
"""It keeps to itself why it was given no route."""
_REFUSAL = re.compile(
    r"CODE: (\d+),?\s+DESC: ([^\n]*?)(?: BROKER: \S+)?$|remark:()([^\n]*?), error code:(\d+)",
    re.MULTILINE,
)
"""A refusal as clients print or log it: Java's and Go's, then the C++ client's."""
Done = CompletedProcess[str]
pytestmark = [
    pytest.mark.access,
    pytest.mark.timeout(RUN_S + BUILD_S),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


class Sides(NamedTuple):
    """The two, and the node once more: by a name server of RocketMQ, which asks nobody who it is,
    as a broker's."""

    broker: LoginSide
    node: LoginSide
    named_node: LoginSide


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sides]:
    folder = tmp_path_factory.mktemp("sides")
    names = f"127.0.0.1:{free_ports(1)}"
    with ExitStack() as ends:
        broker = ends.enter_context(broker_with_users(folder / "rocketmq"))
        jvm = start_name_server(class_path(), folder / "names", names)
        ends.callback(jvm.kill)
        settings = (f"broker.namesrv_addr={names}",)
        node, _ = ends.enter_context(node_with_users(folder / "store", settings))
        named = LoginSide(Side(names, node.side.broker))
        named.side.await_route("TBW102")
        yield Sides(broker, node, named)


def rights_of(topic: str) -> Rights:
    """What a scenario needs, and no more."""
    groups = {f"Group:{group}-{topic}": "Sub" for group in GROUPS}
    return {f"Topic:{topic}": "Pub Sub", **groups}


def client_of(name: str) -> Client:
    client = CLIENTS[name]
    if client.missing():
        pytest.skip(client.missing())
    return client


def said_by(done: Done, home: Path) -> str:
    """What a client has printed, and what is in its log."""
    logs = [one.read_text(errors="replace") for one in home.rglob("*.log*") if one.is_file()]
    return "\n".join([done.stderr, *logs])


def refusals(said: str) -> set[tuple[int, str]]:
    """Codes and texts of refusals."""
    found = [one.groups(default="") for one in _REFUSAL.finditer(said)]
    return {(int(code or cpp_code), text or cpp) for code, text, _, cpp, cpp_code in found}


Run = Callable[[str, LoginSide], Done]


def at_once(run: Run, logins: Mapping[str, LoginSide]) -> dict[str, Done]:
    """A scenario mostly waits."""
    with ThreadPoolExecutor(len(logins)) as pool:
        return dict(zip(logins, pool.map(run, logins, logins.values()), strict=True))


@pytest.mark.parametrize("name", NAMES)
def test_with_a_list_of_what_it_does_a_client_sees_what_anybody_sees_without_users(
    name: str, sides: Sides, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    client = client_of(name)
    program = client.build(request.config.cache.mkdir("clients"))
    topic = name.replace(".", "_")
    who = Credentials(f"user-of-{topic}", f"secret-of-{topic}")

    def run(side: str, login: LoginSide) -> Done:
        home = tmp_path / side
        home.mkdir()
        login.make_user(who, rights_of(topic))
        if not client.makes_topics:
            login.create_topic(topic, QUEUES)
        more = {"CREDENTIALS_FILE": str(who.file(home))}
        return run_scenario(program.scenario, login.side.name_server, topic, home, more)

    for side, done in at_once(run, {"broker": sides.broker, "node": sides.node}).items():
        said = f"{side}: {done.stdout}\n{done.stderr[-4000:]}"
        assert (done.stdout, done.returncode) == (client.transcript(), 0), said


@pytest.mark.parametrize("name", NAMES)
def test_with_a_wrong_secret_a_client_hears_at_both_sides_the_same_code_and_text(
    name: str, sides: Sides, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    client = client_of(name)
    program = client.build(request.config.cache.mkdir("clients"))
    topic = name.replace(".", "_") + "_refused"
    who = Credentials(f"user-of-{topic}", f"secret-of-{topic}")
    for login in (sides.broker, sides.node):
        login.make_user(who, rights_of(topic))
        login.create_topic(topic, QUEUES)

    def run(side: str, login: LoginSide) -> Done:
        home = tmp_path / side
        home.mkdir()
        more = {"CREDENTIALS_FILE": str(who._replace(secret=BAD_SECRET).file(home))}
        return run_scenario(program.scenario, login.side.name_server, topic, home, more)

    found = at_once(run, sides._asdict())
    said = {side: said_by(done, tmp_path / side) for side, done in found.items()}
    assert all(done.returncode and not done.stdout for done in found.values()), found
    assert _without_numbers(found["named_node"]) == _without_numbers(found["broker"])
    assert refusals(said["named_node"]) == refusals(said["broker"])
    if name != SAYS_NO_REASON:
        assert refusals(said["broker"]) == {(REFUSED, NOT_PROVED)}
    # A node that is its own name server refuses the route, which is asked for first.
    why = "route info not found" if name == SAYS_NO_ROUTE else NOT_PROVED
    assert why in said["node"]


def _without_numbers(done: Done) -> str:
    """The first line of what a client says: how long it tried changes from run to run."""
    return re.sub(r"\d+", "<n>", done.stderr.partition("\n")[0])
