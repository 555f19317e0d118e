"""The unit, installed and started by the commands of docs/operations.md as they are printed."""

import re
import signal
import time
from collections.abc import Iterator

import psutil
import pytest

from tests.deploy.debian import ROOT, copy, in_folder, missing
from tests.deploy.machine import Machine
from tests.support.image_context import copy_of_context
from tests.support.node import wait_until

pytestmark = [pytest.mark.deploy, pytest.mark.xdist_group("deploy"), pytest.mark.timeout(900)]

OF_SYSTEMD = ("systemctl", "sudo systemctl")
KEELOG = "sudo -u keelog /opt/keelog/.venv/bin/keelog"
DROP_IN = """[Service]
ExecStart=
ExecStart=/opt/keelog/.venv/bin/keelog serve /var/lib/keelog/store --remoting 0.0.0.0:10911
Environment=KEELOG_SERVE__OPEN_ENDS=remoting
WatchdogSec=5
"""


def commands(begin: str) -> list[str]:
    """The commands of the block that follows these words of the page."""
    page = (ROOT / "docs" / "operations.md").read_text()
    found = re.search(r"\n\n((?:    .+\n)+)", page[page.index(begin) :])
    assert found is not None
    return [line.strip() for line in found[1].splitlines()]


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """A Debian on which the page's commands were run, up to a running unit."""
    if missing():
        pytest.skip(missing())
    place = tmp_path_factory.mktemp("systemd")
    folder = copy(place / "debian")
    copy_of_context(folder / "src")
    words = commands("**Under systemd**")
    install = [one for one in words if not one.startswith(OF_SYSTEMD)]
    in_folder(folder, " && ".join(install), folder="/src")
    with Machine(folder, place / "log") as booted:
        wait_until(lambda: "running" in booted("systemctl is-system-running || true"), "no systemd")
        # nspawn lays a boot id of its own over the machine's. A unit with ProtectProc= has a /proc
        # of its own and does not see it, so commands beside it would be of another machine.
        booted("umount /proc/sys/kernel/random/boot_id")
        for one in words[len(install) :]:
            booted(one)
        yield booted


def show(machine: Machine, name: str) -> str:
    return machine(f"systemctl show --value --property={name} keelog").strip()


def wait_active(machine: Machine, restarts: int) -> None:
    """Returns when systemd has started the unit so often again, and it is ready."""
    wait_until(lambda: int(show(machine, "NRestarts")) >= restarts, "no restart", 120)
    wait_until(lambda: show(machine, "ActiveState") == "active", "not active again", 120)
    assert int(show(machine, "NRestarts")) == restarts


def supervisor(machine: Machine) -> psutil.Process:
    (found,) = (one for one in below(machine) if one.name() == "keelog-serve")
    return found


def below(machine: Machine) -> list[psutil.Process]:
    return [one for one in machine.init.children(recursive=True) if one.name()[:6] == "keelog"]


def stored(machine: Machine) -> list[str]:
    return machine(f"{KEELOG} consume orders -o start -e -f '%v\\n'").split()


def test_the_commands_of_the_page_start_a_node(machine: Machine) -> None:
    assert show(machine, "ActiveState") == "active"
    assert show(machine, "NRestarts") == "0"
    assert "all processes run" in machine("systemctl status keelog")
    machine(f"{KEELOG} health")
    machine(f"echo one | {KEELOG} produce orders --quiet")
    assert stored(machine) == ["one"]
    assert machine("stat -c '%U %a' /var/lib/keelog").split() == ["keelog", "700"]


def test_a_killed_writer_is_the_supervisors_to_replace(machine: Machine) -> None:
    (writer,) = (one for one in below(machine) if "writer" in one.name())
    writer.kill()
    wait_until(
        lambda: any("writer" in one.name() and one != writer for one in below(machine)),
        "no other writer",
    )
    machine(f"{KEELOG} health --wait 60")
    assert show(machine, "NRestarts") == "0"
    assert stored(machine) == ["one"]


def test_a_killed_supervisor_is_systemds_to_start_again(machine: Machine) -> None:
    supervisor(machine).kill()
    wait_active(machine, 1)
    assert stored(machine) == ["one"]


def test_options_come_by_a_drop_in_and_groups_work_under_the_units_limits(
    machine: Machine,
) -> None:
    folder = "/etc/systemd/system/keelog.service.d"
    machine(f"mkdir -p {folder}; printf '%s' '{DROP_IN}' > {folder}/override.conf")
    machine("systemctl daemon-reload; systemctl restart keelog")
    assert show(machine, "NRestarts") == "0", "a restart by hand begins anew"
    words = f"timeout 60 {KEELOG} consume orders --group billing -o start --count 1 -f '%v\\n'"
    assert machine(words).split() == ["one"]


def test_a_supervisor_that_hangs_is_ended_by_the_watchdog(machine: Machine) -> None:
    supervisor(machine).send_signal(signal.SIGSTOP)
    wait_active(machine, 1)
    assert "watchdog" in machine("journalctl -u keelog --no-pager").lower()
    assert stored(machine) == ["one"]


def test_the_commands_of_an_upgrade_lose_nothing(machine: Machine) -> None:
    began = machine("stat -c %Y /opt/keelog/.venv/bin/keelog")
    time.sleep(1.0)
    for one in commands("An upgrade, with a backup first:"):
        if not one.startswith(("pip ", "rm ")) and "pip install" not in one:
            machine(one)
        elif "pip install" in one:
            # The container has no network; what the wheel needs is there already.
            machine(f"cd /src; {one} --no-deps", env=("HOME=/root",))
    assert machine("stat -c %Y /opt/keelog/.venv/bin/keelog") != began, "it was installed again"
    assert stored(machine) == ["one"]
    machine("sudo -u keelog test -f /backup/keelog/backup.json")


def test_a_stop_is_clean(machine: Machine) -> None:
    machine("systemctl stop keelog")
    assert (show(machine, "Result"), show(machine, "ExecMainStatus")) == ("success", "0")
    assert not below(machine)
    machine(f"{KEELOG} store verify /var/lib/keelog/store --deep")
