"""A master and its replica tell the board and the alerts how replication goes."""

import re
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.support.follower import HA, followers_place
from tests.support.node import RunningNode, wait_until
from tests.test_deploy import watched_exprs

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("replication_is_watched")]

REPLICATION = re.compile(r"\bkeelog_(?:replica|followers)[a-z_]*\b")
HTTP = {"KEELOG_HTTP": "127.0.0.1:0"}


def scrape(node: RunningNode) -> dict[str, float]:
    """The metrics, a state of the replica with its name."""
    with urllib.request.urlopen(f"{node.client.status().raw['http']}/metrics", timeout=30) as page:
        text = page.read().decode()
    return {
        sample.name + sample.labels.get("state", ""): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningNode, RunningNode]]:
    folder = tmp_path_factory.mktemp("watched")
    needs_one = ("broker_role=SYNC_MASTER", "in_sync_replicas=2")
    with RunningNode(
        folder / "master", (HA, *needs_one), queue_workers=1, readers=1, env=HTTP
    ) as master:
        host, port = followers_place(master)
        follow = (f"follow={host}:{port}",)
        with RunningNode(folder / "copy", follow, queue_workers=1, readers=1, env=HTTP) as replica:
            yield master, replica


def test_every_metric_of_replication_on_the_board_and_in_the_alerts_is_scraped(
    pair: tuple[RunningNode, RunningNode],
) -> None:
    named = {name for expr in watched_exprs() for name in REPLICATION.findall(expr)}
    there = {name for node in pair for name in scrape(node)}
    states = {name for name in there if name.startswith("keelog_replica_state")}
    assert len(named) > 5
    assert named <= there | {"keelog_replica_state"}
    assert states >= {"keelog_replica_statefollowing", "keelog_replica_statestopped"}


def test_the_metrics_say_that_the_replica_has_what_was_sent(
    pair: tuple[RunningNode, RunningNode],
) -> None:
    master, replica = pair
    wait_until(lambda: scrape(master)["keelog_followers_in_sync"] == 1, "nobody follows")
    master.client.send("t", b"on both", acks="replicated")
    end = master.log_state().appended

    def has_all() -> bool:
        found = scrape(replica)
        acknowledged = found["keelog_replica_acknowledged_offset_bytes"]
        return acknowledged == end and found["keelog_replica_lag_bytes"] == 0

    wait_until(has_all, "the replica is behind")
    assert scrape(replica)["keelog_replica_statefollowing"] == 1
    name = "keelog_followers_acknowledged_offset_bytes"
    wait_until(lambda: scrape(master)[name] == end, "the acknowledgement is not shown")
    assert scrape(master)["keelog_followers_lag_bytes"] == 0
