"""A promoted replica goes on where its master was: nothing that was delivered, or taken back, comes
again, and what waited comes once."""

import time
from collections import Counter
from pathlib import Path

import pytest

from keelog.client.client import Client
from keelog.replication.roles import promote
from node.runtime.run_files import read_follow_state
from node.runtime.settings import load_settings
from protocol.status import HealthCheck
from tests.support.follower import HA, followers_place
from tests.support.node import RunningNode, wait_until
from tests.support.remoting import REMOTING, remoting_place

pytestmark = pytest.mark.process
SMALL = f"mapped_file_size_commit_log={4 * 1024 * 1024}"


def bodies(client: Client) -> Counter[bytes]:
    return Counter(message.body for message in client.tail("t", "earliest", until_end=True))


def masters(client: Client) -> HealthCheck:
    """Whether the node knows of another master."""
    return next(check for check in client.health().checks if check.name == "masters")


def test_what_the_master_delivered_or_took_back_does_not_come_again(tmp_path: Path) -> None:
    with RunningNode(tmp_path / "a", (REMOTING, HA, SMALL), queue_workers=1, readers=1) as master:
        ha, remoting = followers_place(master), remoting_place(master.stderr)
        follow = (f"follow={ha[0]}:{ha[1]}", f"follow_remoting={remoting[0]}:{remoting[1]}")
        with RunningNode(tmp_path / "b", (*follow, SMALL), queue_workers=1, readers=1) as copy:
            client = master.client
            client.create_topic("t", queues=1)
            for number in range(20):
                client.send("t", b"timer %d" % number, delay=1.0)
                client.send("t", b"level %d" % number, delay_level=1)
            client.cancel(client.send("t", b"taken back", delay=2.0))
            wait_until(lambda: len(bodies(client)) == 40, "not all were delivered", 60)
            time.sleep(2.5)  # until the second of the one that was taken back is over
            delivered_ms = time.time() * 1000 + 1_000  # the master saves its progress each second
            client.cancel(client.send("t", b"later taken back", delay=8.0))
            client.send("t", b"later", delay=8.0)
            end = master.log_state().appended
            wait_until(
                lambda: (
                    read_follow_state(copy.root).progress_ms > delivered_ms
                    and copy.log_state().flushed >= end
                ),
                "the progress was not taken over",
            )
            master.kill_all()
    done = promote(tmp_path / "b", load_settings([SMALL]))
    assert done.progress_ms > delivered_ms
    with RunningNode(tmp_path / "b", (REMOTING, SMALL), queue_workers=1, readers=1) as promoted:
        wait_until(lambda: bodies(promoted.client)[b"later"] == 1, "it did not come", 60)
        wanted = [b"%s %d" % (kind, n) for kind in (b"timer", b"level") for n in range(20)]
        assert bodies(promoted.client) == Counter([*wanted, b"later"])
        # Somebody starts the old master beside it, as systemd does after a boot.
        again = (f"serve.remoting={remoting[0]}:{remoting[1]}", HA, SMALL)
        with RunningNode(tmp_path / "a", again, queue_workers=1, readers=1):
            wait_until(lambda: not masters(promoted.client).ok, "it was not noticed", 60)
            assert f"{remoting[0]}:{remoting[1]} is a master" in masters(promoted.client).detail
        wait_until(lambda: masters(promoted.client).ok, "it is gone, and not forgotten", 60)
