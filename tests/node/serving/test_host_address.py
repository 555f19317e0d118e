"""The address of this machine that others are given, in namespaces with odd interfaces."""

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from node.runtime import addresses

ROOT = Path(__file__).resolve().parents[3]
SHOW = """
import sys
from node.runtime.addresses import first_address, first_ipv4
print(first_address(*sys.argv[1:]), first_ipv4())
"""
SYS = "mount -t sysfs sysfs /sys\n"
"""It shows the interfaces of the namespace in which it was mounted."""
RUN = 'exec "$@"'
BRIDGE = """
ip link set lo up
ip link add aa0 type bridge
ip link set aa0 up
ip addr add 172.17.0.1/16 dev aa0
"""
"""As Docker makes one; its name comes before the others."""
CABLE = """
ip link add eth0 type veth peer name far0
ip link set eth0 up
ip link set far0 up
ip addr add 10.77.19.2/24 dev eth0
"""
ROUTED = f"{BRIDGE}{CABLE}ip route add default via 10.77.19.1\n"
SIX = """
ip link set lo up
ip link add eth0 type veth peer name far0
ip link set eth0 up
ip link set far0 up
ip addr add fd00::7/64 dev eth0 nodad
"""


def found_in(network: str, *towards: str) -> list[str]:
    """What the two functions find in a namespace with these interfaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None or shutil.which("unshare") is None:
        pytest.skip("a network namespace needs root, and the programs ip and unshare")
    words = ["unshare", "-nm", "sh", "-ec", f"{SYS}{network}\n{RUN}", "sh"]
    if subprocess.run([*words, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip("no such network namespace here")
    show = [*words, sys.executable, "-c", SHOW, *towards]
    return subprocess.run(show, check=True, capture_output=True, text=True, cwd=ROOT).stdout.split()


@pytest.mark.parametrize(
    ("network", "towards", "address"),
    [
        (ROUTED, (), "10.77.19.2"),
        (f"{BRIDGE}{CABLE}", (), "10.77.19.2"),  # no default route: as a broker takes it
        (BRIDGE, (), "172.17.0.1"),  # there is no other one
        (ROUTED, ("172.17.0.9",), "172.17.0.1"),
        (ROUTED, ("10.77.19.1",), "10.77.19.2"),
        (ROUTED, ("127.0.0.1",), "10.77.19.2"),
        ("ip link set lo up", (), "127.0.0.1"),
    ],
)
def test_it_is_that_of_the_way_to_others_and_of_no_bridge(
    network: str, towards: tuple[str, ...], address: str
) -> None:
    assert found_in(network, *towards)[0] == address


def test_a_machine_without_ipv4_has_an_address_in_brackets() -> None:
    assert found_in(SIX) == ["[fd00::7]", "127.0.0.1"]


def test_a_system_that_does_not_name_its_interfaces_has_the_loopback_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refused() -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(addresses, "local_address", lambda _outside: "")
    monkeypatch.setattr(psutil, "net_if_stats", refused)
    assert addresses.first_ipv4() == "127.0.0.1"


def test_the_way_to_a_name_with_addresses_of_both_kinds_is_that_of_ipv4(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    both = [
        (socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("::1", 9, 0, 0)),
        (socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", 9)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: both)
    assert addresses.local_address("both.example.org") == "127.0.0.1"
