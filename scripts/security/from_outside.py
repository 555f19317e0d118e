"""What a stranger gets at each port of a node that listens at all addresses of its machine.

`python -m scripts.security.from_outside` prints two tables: for a node whose ends are all open, and
for one with a user, keys and a certificate. The stranger is in a network namespace of its own, with
a cable to the node's: it needs root and the program `ip`. Before, a node without logins is started
without a word about open ends, and must refuse.
"""

import argparse
import json
import os
import shutil
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import keelog
from node.runtime.run_files import read_control
from scripts.command_line import grid
from scripts.security import peers
from scripts.security.guarded import (
    FOREIGN_TOPIC,
    GROUP,
    GUEST,
    OWN_TOPIC,
    PASSWORD,
    GuestCredentials,
    NodePorts,
    ServedNode,
    make_guarded_store,
    open_words,
)
from scripts.security.peers import CurveKeys, PeerLogin, PeerOutcome, PeerVerdict, Place

EVERYWHERE = "0.0.0.0"
PROBE_S = 120
PAGES = ("/livez", "/readyz", "/metrics")
ROOT = Path(__file__).resolve().parents[2]
Row = dict[str, PeerOutcome]
"""By caller."""
Table = dict[str, Row]
"""By end of the node."""


class Visitor(NamedTuple):
    """Who asks, with what, for which topic. Files by their paths: it crosses to the namespace."""

    name: str
    topic: str = OWN_TOPIC
    user: str = ""
    password: str = ""
    keys: Sequence[str] | None = None
    trust: str = ""
    """Of who speaks TLS."""
    certificate: str = ""

    def login(self) -> PeerLogin:
        """What a client of it comes with."""
        tls = None
        if self.trust:
            tls = ssl.create_default_context(cafile=self.trust)
            if self.certificate:
                tls.load_cert_chain(self.certificate)
        keys = None if self.keys is None else CurveKeys(*self.keys)
        return PeerLogin(self.user, self.password, keys, tls)


PLAIN = Visitor("a stranger")


def callers(guest: GuestCredentials) -> list[Visitor]:
    """Those who ask at a node with a login."""
    trust, own, false = str(guest.trust), guest.keys, guest.unknown_keys
    certificate = str(guest.certificate)
    known = Visitor("the user", OWN_TOPIC, GUEST, PASSWORD, own, trust, certificate)
    return [
        PLAIN,
        Visitor("encrypted, without a login", keys=false, trust=trust),
        Visitor(
            "a false login", user=GUEST, password="another", keys=false, trust=trust,
            certificate=str(guest.foreign_certificate),
        ),
        known,
        known._replace(name="the user, another's topic", topic=FOREIGN_TOPIC),
    ]  # fmt: skip


class Cable(NamedTuple):
    """A network namespace with a cable to ours."""

    name: str
    here: str
    """Our address, as those in the namespace reach it."""


@contextmanager
def elsewhere() -> Iterator[Cable]:
    """Raises CalledProcessError where there are no namespaces."""
    name, net = f"kls{os.getpid() % 100_000}", os.getpid() % 250
    here, there = f"{name}a", f"{name}b"
    cable = Cable(name, f"10.214.{net}.1")
    _ip("netns", "add", name)
    try:
        _ip("link", "add", here, "type", "veth", "peer", "name", there, "netns", name)
        for words, device, address in (
            ((), here, cable.here),
            (("-n", name), there, f"10.214.{net}.2"),
        ):
            _ip(*words, "link", "set", device, "up")
            _ip(*words, "addr", "add", f"{address}/30", "dev", device)
        yield cable
    finally:
        _ip("netns", "del", name)
        subprocess.run(["ip", "link", "del", here], check=False, capture_output=True)


def _ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, timeout=PROBE_S)


def missing() -> str:
    """Why there can be no namespace; empty if there can."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return "a network namespace needs root, and the program ip"
    return ""


# In the namespace


def ask_everywhere(places: Mapping[str, Place], caller: Visitor) -> Row:
    """One caller at each end."""
    login, found = caller.login(), {}
    for end, place in places.items():
        match end.split()[0]:
            case "control":
                found[end] = peers.own(place, login, "status")
            case "writer":
                found[end] = peers.own(place, login, "send", topic=caller.topic, body=b"x")
            case "reader":
                asked: dict[str, Any] = {"topic": caller.topic, "queue": 0, "offset": 0}
                found[end] = peers.own(place, login, "pull", **asked)
            case "remoting":
                found[end] = peers.remoting(place, login, caller.topic, GROUP)
            case "followers":
                found[end] = peers.follow(place, login)
            case "http":
                found |= {f"http {page}": peers.http(place, login, page) for page in PAGES}
    return found


def probe() -> None:
    """Reads places and callers, and writes what each got: this is what runs in the namespace."""
    asked = json.load(sys.stdin)
    places = {end: (host, port) for end, (host, port) in asked["places"].items()}
    rows = {one[0]: ask_everywhere(places, Visitor(*one)) for one in asked["callers"]}
    json.dump(rows, sys.stdout)


# At the node


def look(cable: Cable, ports: NodePorts, who: Sequence[Visitor]) -> Table:
    """What these callers get from the namespace."""
    asked = {"places": ports.places(cable.here), "callers": who}
    words = [sys.executable, "-m", "scripts.security.from_outside", "--probe"]
    done = subprocess.run(
        ["ip", "netns", "exec", cable.name, *words],
        input=json.dumps(asked), capture_output=True, text=True, timeout=PROBE_S, check=False,
        cwd=ROOT,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"error: the stranger ended with {done.returncode}:\n{done.stderr}")
    found: Table = {}
    for name, row in json.loads(done.stdout).items():
        for end, (verdict, words_) in row.items():
            found.setdefault(end, {})[name] = PeerOutcome(PeerVerdict(verdict), words_)
    return found


def start_without_a_word(folder: Path) -> tuple[int | None, str]:
    """A new node at all addresses, without logins, and without --open. The exit code, None where
    it was ready; and what it said."""
    node = ServedNode(folder / "default", NodePorts.free().words(EVERYWHERE))
    node.begin()
    is_ready = node.wait_ready()
    code = node.stop()
    return (None if is_ready else code), node.said()


def look_at_open_node(cable: Cable, folder: Path) -> Table:
    """At a node that has all its ends open."""
    ports = NodePorts.free()
    words = [*ports.words(EVERYWHERE), *open_words()]
    with ServedNode(folder / "open", words) as node:
        _make_topics(node)
        return look(cable, ports, [PLAIN])


def look_at_guarded_node(cable: Cable, folder: Path) -> Table:
    """At a node with one user, keys and a certificate."""
    ports, root = NodePorts.free(), folder / "guarded"
    guest = make_guarded_store(root, cable.here)
    with ServedNode(root, [*ports.words(EVERYWHERE), *guest.node_words]) as node:
        _make_topics(node)
        return look(cable, ports, callers(guest))


def _make_topics(node: ServedNode) -> None:
    """By the node's own user at its machine, who needs no login."""
    with keelog.connect(read_control(node.root), timeout=30.0) as client:
        for topic in (OWN_TOPIC, FOREIGN_TOPIC):
            client.create_topic(topic, 1)
            receipt = client.send(topic, b"before", acks="flushed")
            while not client.pull(topic, 0, receipt.queue_offset).messages:
                time.sleep(0.01)


def table_text(table: Table) -> str:
    """A table in Markdown."""
    names = list(next(iter(table.values())))
    rows = [[end, *(str(row[name]) for name in names)] for end, row in table.items()]
    return grid(["end", *names], rows)


def main() -> None:
    parser = argparse.ArgumentParser("python -m scripts.security.from_outside", description=__doc__)
    parser.add_argument("--probe", action="store_true", help=argparse.SUPPRESS)
    if parser.parse_args().probe:
        probe()
        return
    if why := missing():
        raise SystemExit(f"error: {why}")
    with tempfile.TemporaryDirectory(prefix="keelog-outside-") as name, elsewhere() as cable:
        folder = Path(name)
        code, said = start_without_a_word(folder)
        ended = "it serves" if code is None else f"it ends with {code}"
        print(f"At all addresses, without a login: {ended}\n\n{said}")
        print(f"All ends open ({' '.join(open_words())}):\n")
        print(table_text(look_at_open_node(cable, folder)), end="\n\n", flush=True)
        print("With one user, keys and a certificate:\n")
        print(table_text(look_at_guarded_node(cable, folder)))


if __name__ == "__main__":
    main()
