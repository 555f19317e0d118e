"""RocketMQ's clients, unmodified: what each sees at a node is what it sees at RocketMQ's broker."""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from scripts.rivals.rocketmq import missing
from tests.clients.programs import BUILD_S, CLIENTS, RUN_S, run_scenario
from tests.clients.sides import Side, running_broker, running_node

QUEUES = 4
pytestmark = [
    pytest.mark.clients,
    pytest.mark.timeout(RUN_S + BUILD_S),
    pytest.mark.skipif(bool(missing()), reason=missing()),
]


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mapping[str, Side]]:
    folder = tmp_path_factory.mktemp("sides")
    with ExitStack() as stack:
        broker = stack.enter_context(running_broker(folder / "rocketmq"))
        node, _ = stack.enter_context(running_node(folder / "store"))
        yield {"broker": broker, "node": node}


def transcript(program: Sequence[str], side: Side, topic: str, home: Path) -> str:
    """What a scenario prints at one side. Clients leave their logs in `home`."""
    done = run_scenario(program, side.name_server, topic, home)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize("name", CLIENTS)
def test_a_client_sees_at_a_node_what_it_sees_at_a_broker(
    name: str, sides: Mapping[str, Side], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    client = CLIENTS[name]
    if client.missing():
        pytest.skip(client.missing())
    program = client.build(request.config.cache.mkdir("clients"))
    topic = name.replace(".", "_")

    def run(side_name: str) -> str:
        side, home = sides[side_name], tmp_path / side_name
        home.mkdir()
        if not client.makes_topics:
            side.create_topic(topic, QUEUES)
        return transcript(program.scenario, side, topic, home)

    # Both at once: a scenario mostly waits.
    with ThreadPoolExecutor(len(sides)) as pool:
        found = dict(zip(sides, pool.map(run, sides), strict=True))
    assert found["broker"] == client.transcript()
    assert found["node"] == found["broker"]
