"""What systemd is told, by a socket in its place."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from node.supervisor.service import ServiceManager


@pytest.fixture
def receiver(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(str(tmp_path / "notify"))
        bound.setblocking(False)
        yield bound


def said(receiver: socket.socket) -> list[str]:
    lines: list[str] = []
    while True:
        try:
            lines += receiver.recv(4096).decode().split("\n")
        except BlockingIOError:
            return lines


def manager_of(receiver: socket.socket, watchdog_s: float = 0.0) -> ServiceManager:
    return ServiceManager(receiver.getsockname(), watchdog_s)


def test_a_long_start_asks_for_patience_until_it_is_ready(receiver: socket.socket) -> None:
    manager = manager_of(receiver)
    manager.turn(0.0, False, "recovering")
    assert said(receiver) == ["EXTEND_TIMEOUT_USEC=60000000", "STATUS=recovering"]
    manager.turn(1.0, False, "recovering")
    assert said(receiver) == []
    manager.turn(11.0, False, "recovering")
    assert said(receiver) == ["EXTEND_TIMEOUT_USEC=60000000"]
    manager.turn(12.0, True, "all run")
    assert said(receiver) == ["READY=1", "STATUS=all run"]
    manager.turn(30.0, False, "all run")
    manager.turn(31.0, True, "all run")
    assert said(receiver) == []
    manager.stopping()
    assert said(receiver) == ["STOPPING=1"]


def test_the_watchdog_is_told_twice_in_its_time(receiver: socket.socket) -> None:
    manager = manager_of(receiver, watchdog_s=30.0)
    told = []
    for now in range(61):
        manager.turn(float(now), True, "all run")
        told += [now] * said(receiver).count("WATCHDOG=1")
    assert told == [0, 15, 30, 45, 60]


def test_the_variables_are_for_this_process_alone(receiver: socket.socket) -> None:
    ours = {"NOTIFY_SOCKET": receiver.getsockname(), "WATCHDOG_USEC": "2000000", "A": "b"}
    environment = {**ours, "WATCHDOG_PID": str(os.getpid())}
    ServiceManager.from_environment(environment).turn(0.0, True, "")
    assert environment == {"A": "b"}
    assert said(receiver) == ["READY=1", "WATCHDOG=1"]
    environment = {**ours, "WATCHDOG_PID": "1"}
    ServiceManager.from_environment(environment).turn(0.0, True, "")
    assert said(receiver) == ["READY=1"]


def test_a_socket_without_a_file_is_reached() -> None:
    name = f"keelog-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bound:
        bound.bind(f"\0{name}")
        bound.setblocking(False)
        ServiceManager(f"@{name}").turn(0.0, True, "")
        assert said(bound) == ["READY=1"]


def test_without_a_manager_and_with_one_that_is_gone_nothing_happens(tmp_path: Path) -> None:
    ServiceManager.from_environment({}).turn(0.0, True, "")
    ServiceManager(str(tmp_path / "gone"), 1.0).turn(0.0, True, "x")
    assert list(tmp_path.iterdir()) == []
