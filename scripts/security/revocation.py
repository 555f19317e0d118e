"""Seconds until a node refuses somebody whose user, right, certificate or address was taken away.

`python -m scripts.security.revocation` starts a node with a user, keys and a certificate, and
prints a row for each client and each way to revoke it: the time from the end of the command until
the first refusal, as median and worst of the rounds. `on and on` is a client that goes on asking;
others wait for an answer, or for the log. Then: how long a connection lives on that may do nothing.
"""

import argparse
import math
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import NamedTuple

import trustme

import keelog
from node.access.users_file import read_users
from node.runtime.run_files import read_control
from protocol import ha
from protocol.errors import MqError, NotAllowed
from protocol.remoting.codes import RequestCode
from scripts.command_line import print_rows
from scripts.security import peers
from scripts.security.guarded import (
    GROUP,
    GUEST,
    OWN_TOPIC,
    GuestCredentials,
    NodePorts,
    ServedNode,
    make_guarded_store,
    make_guest,
)
from scripts.security.guarded import keelog as command
from scripts.security.peers import PeerLogin, PeerOutcome, PeerVerdict, RemotingClient

HERE = "127.0.0.1"
LIMIT_S = 20.0
"""Somebody who is served for longer is not revoked."""
HOLD_S = 15
LIVES_ON_S_MAX = 20.0
SETTLE_S = 0.2
NEVER = math.inf


@dataclass(frozen=True)
class GuardedSite:
    """The node, and the guest's ways to it."""

    node: ServedNode
    ports: NodePorts
    guest: GuestCredentials
    peers_file: Path
    """Of `ha_allowed_peers`."""

    @property
    def login(self) -> PeerLogin:
        """All that the guest has."""
        return self.guest.login()

    def place(self, port: int) -> peers.Place:
        """A port of the node."""
        return HERE, port

    def node_hears(self) -> None:
        """The hangup after which files are looked at."""
        os.kill(self.node.pid, signal.SIGHUP)


Revoke = Callable[[], float]
"""Takes something away; returns when that was done, by the monotonic clock."""


@contextmanager
def guarded_site(folder: Path) -> Iterator[GuardedSite]:
    """A node at loopback, whose followers come by certificate or from a named address."""
    root, ports, peers_file = folder / "store", NodePorts.free(), folder / "followers"
    guest = make_guarded_store(root, HERE)
    peers_file.write_text(HERE)
    peers_file.chmod(0o600)
    words = [*ports.words(HERE), *guest.node_words, "-X", f"ha_allowed_peers=file:{peers_file}"]
    with ServedNode(root, words) as node:
        with keelog.connect(read_control(root), timeout=30.0) as client:
            client.create_topic(OWN_TOPIC, 1)
            client.send(OWN_TOPIC, b"x", acks="flushed")
        yield GuardedSite(node, ports, guest, peers_file)


# Those who are revoked


def _until_refused(ask: Callable[[], PeerOutcome], revoke: Revoke) -> float:
    """Of a client that asks on and on. Raises SystemExit if it is not served before."""
    first = ask()
    if first.verdict is not PeerVerdict.SERVED:
        raise SystemExit(f"error: a user who may is not served: {first}")
    done = revoke()
    while time.monotonic() < done + LIMIT_S:
        if ask().verdict is not PeerVerdict.SERVED:
            return max(0.0, time.monotonic() - done)
    return NEVER


def remoting_sends(site: GuardedSite, revoke: Revoke) -> float:
    with closing(RemotingClient(site.place(site.ports.remoting), site.login)) as client:
        return _until_refused(lambda: client.store(OWN_TOPIC), revoke)


def remoting_held_pull(site: GuardedSite, revoke: Revoke) -> float:
    with closing(RemotingClient(site.place(site.ports.remoting), site.login)) as client:
        asked = client.ask(RequestCode.GET_MAX_OFFSET, {"topic": OWN_TOPIC, "queueId": 0})
        fields = pull_at(int(asked[0].ext["offset"]))
        number = client.send(RequestCode.PULL_MESSAGE, fields)
        client.store("no-such-right")  # its answer comes after the pull was taken
        done = revoke()
        outcome = peers.outcome_of(client.answer_to(number)[0])
        refused = outcome.verdict is PeerVerdict.REFUSED
        return max(0.0, time.monotonic() - done) if refused else NEVER


def pull_at(offset: int) -> dict[str, object]:
    """A pull that is held for HOLD_S."""
    return peers.pull_fields(OWN_TOPIC, GROUP, HOLD_S * 1000, offset)


def curve_sends(site: GuardedSite, revoke: Revoke) -> float:
    with _curve_client(site) as client:
        return _until_refused(lambda: _outcome(lambda: client.send(OWN_TOPIC, b"x")), revoke)


def curve_held_pull(site: GuardedSite, revoke: Revoke) -> float:
    with _curve_client(site) as client:
        (queue,) = client.offsets(OWN_TOPIC)
        begun = revoke_soon(revoke)
        next(begun)
        found = _outcome(lambda: client.pull(OWN_TOPIC, 0, queue.max_offset, wait=HOLD_S))
        done = next(begun)
        refused = found.verdict is PeerVerdict.REFUSED
        return max(0.0, time.monotonic() - done) if refused else NEVER


def _curve_client(site: GuardedSite) -> keelog.Client:
    url = f"tcp://{HERE}:{site.ports.control}"
    return keelog.connect(
        url, timeout=LIMIT_S, key=site.guest.key_file, server_key=site.guest.keys.server
    )


def _outcome(ask: Callable[[], object]) -> PeerOutcome:
    try:
        ask()
    except NotAllowed as error:
        return PeerOutcome(PeerVerdict.REFUSED, error.reason)
    except MqError as error:
        raise SystemExit(f"error: {error}") from None
    return PeerOutcome(PeerVerdict.SERVED)


def http_basic(site: GuardedSite, revoke: Revoke) -> float:
    place = site.place(site.ports.http)
    stranger = PeerLogin(tls=site.guest.context())
    if peers.http(place, stranger, "/metrics").verdict is PeerVerdict.SERVED:
        raise NobodyIsAsked
    return _until_refused(lambda: peers.http(place, site.login, "/metrics"), revoke)


def slaves_questions(site: GuardedSite, revoke: Revoke) -> float:
    """What a replica asks its master for, by its inner credentials."""

    def ask() -> PeerOutcome:
        return peers.outcome_of(client.ask(RequestCode.GET_ALL_TOPIC_CONFIG, {})[0])

    with closing(RemotingClient(site.place(site.ports.remoting), site.login)) as client:
        return _until_refused(ask, revoke)


def log_stream(login: PeerLogin) -> Callable[[GuardedSite, Revoke], float]:
    """One that follows: until its connection ends."""

    def until_over(site: GuardedSite, revoke: Revoke) -> float:
        with closing(peers.connected(site.place(site.ports.ha), login)) as wire:
            wire.sendall(ha.encode_report(0))
            reader, bytes_read = ha.LogFrameReader(), 0
            while not bytes_read:
                count = wire.recv_into(reader.room())
                if not count:
                    raise SystemExit("error: a follower that may is not served")
                bytes_read += sum(len(frame.body) for frame in reader.take(count))
            wire.sendall(ha.encode_report(bytes_read))
            done = revoke()
            return _until_closed(wire, done)

    return until_over


def _until_closed(wire: socket.socket, done: float, limit_s: float = LIMIT_S) -> float:
    """Of a connection that says nothing more."""
    wire.settimeout(1.0)
    while time.monotonic() < done + limit_s:
        try:
            if not wire.recv(65_536):
                break
        except TimeoutError:
            continue
        except OSError:
            break
    else:
        return NEVER
    return max(0.0, time.monotonic() - done)


def idle_connection(site: GuardedSite, revoke: Revoke) -> float:
    """One by remoting on which the user had logged in, and which says nothing afterwards."""
    place = site.place(site.ports.remoting)
    with closing(RemotingClient(place, site.login)) as client:
        client.store(OWN_TOPIC)
        return _until_closed(client.socket, revoke(), LIVES_ON_S_MAX)


# Ways to revoke


class NobodyIsAsked(Exception):
    """The node does not ask for a login there."""


def by_command(site: GuardedSite, *words: str) -> Revoke:
    """One of the command line, at the node."""

    def revoke() -> float:
        command(*words, "--node", str(site.node.root))
        return time.monotonic()

    return revoke


def by_file(site: GuardedSite, path: Path, text: bytes, *, hangup: bool) -> Revoke:
    """A file that says who may follow says something else."""

    def revoke() -> float:
        path.write_bytes(text)
        if hangup:
            site.node_hears()
        return time.monotonic()

    return revoke


def revoke_soon(revoke: Revoke) -> Iterator[float]:
    """Begins at the first step, in a thread, while the caller waits for something else; at the
    second it returns when it was done."""
    done: list[float] = []

    def run() -> None:
        time.sleep(SETTLE_S)
        done.append(revoke())

    thread = threading.Thread(target=run)
    thread.start()
    yield 0.0
    thread.join()
    yield done[0]


COMMANDS: dict[str, tuple[str, ...]] = {
    "user set --disable": ("user", "set", GUEST, "--disable"),
    "user rm": ("user", "rm", GUEST, "--yes"),
}
OF_TOPIC: dict[str, tuple[str, ...]] = {
    **COMMANDS,
    "acl rm": ("acl", "rm", GUEST, f"Topic:{OWN_TOPIC}", "--yes"),
}
OF_CLUSTER: dict[str, tuple[str, ...]] = {
    **COMMANDS,
    "acl rm": ("acl", "rm", GUEST, "Cluster:DefaultCluster", "--yes"),
}
Ask = Callable[[GuardedSite, Revoke], float]
CLIENTS: dict[str, tuple[Ask, dict[str, tuple[str, ...]]]] = {
    "remoting: sends, on and on": (remoting_sends, OF_TOPIC),
    "remoting: a held pull": (remoting_held_pull, OF_TOPIC),
    "remoting: questions of a slave, on and on": (slaves_questions, OF_CLUSTER),
    "CURVE: sends, on and on": (curve_sends, OF_TOPIC),
    "CURVE: a held pull": (curve_held_pull, OF_TOPIC),
    "HTTP: Basic, on and on": (http_basic, OF_CLUSTER),
    "remoting: the end of an idle connection": (idle_connection, COMMANDS),
}


class Revocation(NamedTuple):
    """One row: who was revoked, how, and the seconds of each round. None: nobody is asked."""

    client: str
    how: str
    seconds: Sequence[float] | None


def measure(site: GuardedSite, rounds: int) -> Iterator[Revocation]:
    """All rows. The guest is made anew after each round."""
    for name, (ask, commands) in CLIENTS.items():
        for how, words in commands.items():
            try:
                found = [one_round(site, ask, words) for _ in range(rounds)]
            except NobodyIsAsked:
                yield Revocation(name, how, None)
            else:
                yield Revocation(name, how, found)
    yield from of_followers(site, rounds)


def one_round(site: GuardedSite, ask: Ask, words: Sequence[str]) -> float:
    """Revokes the guest by a command; returns the seconds until the refusal. Raises
    NobodyIsAsked."""
    try:
        return ask(site, by_command(site, *words))
    finally:
        _guest_anew(site)


def _guest_anew(site: GuardedSite) -> None:
    """Returns when every process knows the guest: the next one asks at any of them."""
    root, keys = site.node.root, site.guest.keys
    if GUEST in read_users(root)[0].users:
        command("user", "rm", GUEST, "--yes", "--node", str(root))
    make_guest("--node", str(root), root.parent, public_key=keys.public)
    ports, login = site.ports, site.login
    deadline = time.monotonic() + LIMIT_S
    while True:
        # The list comes after the user: the reader is asked for what needs it.
        own = [
            peers.own((HERE, ports.control), login, "ping"),
            peers.own((HERE, ports.control + 1), login, "ping"),
            peers.own((HERE, ports.control + 2), login, "offsets", topic=OWN_TOPIC),
        ]
        http = peers.http(site.place(ports.http), login, "/metrics")
        remoting = peers.remoting(site.place(ports.remoting), login, OWN_TOPIC, GROUP)
        if {one.verdict for one in (*own, http, remoting)} == {PeerVerdict.SERVED}:
            return
        if time.monotonic() > deadline:
            raise SystemExit(f"error: the new user is not served: {own}, {http}, {remoting}")
        time.sleep(SETTLE_S)


def of_followers(site: GuardedSite, rounds: int) -> Iterator[Revocation]:
    """The rows of those who follow. What says who may is as before after each round."""
    trust, before = site.guest.trust, site.guest.trust.read_bytes()
    other = trustme.CA().cert_pem.bytes()
    by_certificate = [
        _one_follower(site, site.login, by_file(site, trust, other, hangup=True), trust, before)
        for _ in range(rounds)
    ]
    yield Revocation("a follower by TLS", "its authority is not trusted, SIGHUP", by_certificate)
    named = site.peers_file.read_bytes()
    revoke = by_file(site, site.peers_file, b"192.0.2.1", hangup=False)
    by_address = [
        _one_follower(site, peers.STRANGER, revoke, site.peers_file, named) for _ in range(rounds)
    ]
    yield Revocation("a follower by its address", "the file of ha_allowed_peers", by_address)


def _one_follower(
    site: GuardedSite, login: PeerLogin, revoke: Revoke, path: Path, before: bytes
) -> float:
    try:
        return log_stream(login)(site, revoke)
    finally:
        path.write_bytes(before)
        site.node_hears()
        deadline = time.monotonic() + LIMIT_S
        place = site.place(site.ports.ha)
        while peers.follow(place, login).verdict is not PeerVerdict.SERVED:
            if time.monotonic() > deadline:
                raise SystemExit("error: the follower is not served again")


def _row(found: Revocation) -> tuple[str, ...]:
    if found.seconds is None:
        return found.client, found.how, "nobody is asked", ""
    texts = [
        "never" if second == NEVER else f"{second:.2f}"
        for second in (median(found.seconds), max(found.seconds))
    ]
    return found.client, found.how, *texts


def main() -> None:
    parser = argparse.ArgumentParser("python -m scripts.security.revocation", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    head = "client", "revoked by", "median s", "worst s"
    with (
        tempfile.TemporaryDirectory(prefix="keelog-revoked-") as folder,
        guarded_site(Path(folder)) as site,
    ):
        print_rows(head, map(_row, measure(site, options.rounds)))


if __name__ == "__main__":
    main()
