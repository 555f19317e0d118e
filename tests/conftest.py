"""Fixtures for all tests: golden stores, a node, and how long hypothesis searches."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

from protocol.kernel import loader
from tests.support import shared_node as shared
from tests.support.faults.disk_faults import DiskFaults, build_library
from tests.support.golden import GetStore, unpack
from tests.support.kernel import using
from tests.support.node import RunningNode

# No deadline for one example: two cores that others use too are no clock.
# CI always tries the same examples: a red run is then the change's doing and can be repeated.
settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=50, deadline=None, derandomize=True)
settings.register_profile(
    "night", max_examples=20_000, deadline=None, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile(
    os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if os.environ.get("CI") == "true" else "dev")
)

Print = dict[str, tuple[int, int]]


def _print(store: Path) -> Print:
    """Length and time of change of every file: enough to see that somebody wrote."""
    return {
        str(path.relative_to(store)): (path.stat().st_size, path.stat().st_mtime_ns)
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }


@pytest.hookimpl(trylast=True)  # when `-m` has taken away what does not run
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Modules that start processes first, of those the ones whose tests may take longest: thousands
    of short tests keep every core busy to the end."""
    longest: dict[Path, float] = {}
    for item in items:
        if item.get_closest_marker("process") or item.get_closest_marker("spark"):
            mark = item.get_closest_marker("timeout")
            seconds = mark.args[0] if mark else USUAL_S
            longest[item.path] = max(seconds, longest.get(item.path, 0.0))
    items.sort(key=lambda item: -longest.get(item.path, 0.0))


USUAL_S = 120.0
"""Of a test without a mark: `timeout` in pyproject.toml."""
SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR2)
"""Those that processes of a node handle."""


@pytest.fixture(autouse=True)
def signals_as_before() -> Iterator[None]:
    """Gives back what the signals did before a test.

    A supervisor that runs in this process ignores some at its end. Processes inherit that: one
    that a later test asked to stop before it had its own handler ran to the end of its sleep.
    """
    before = {one: signal.getsignal(one) for one in SIGNALS}
    yield
    for one, handler in before.items():
        if handler is not None and signal.getsignal(one) is not handler:
            signal.signal(one, handler)


@pytest.fixture(scope="session")
def golden(tmp_path_factory: pytest.TempPathFactory) -> Iterator[GetStore]:
    """`golden(name)`: the folder of a golden store that all tests share. Read it only."""
    unpacked: dict[str, tuple[Path, Print]] = {}

    def get(name: str) -> Path:
        if name not in unpacked:
            store = unpack(name, tmp_path_factory.mktemp("golden"))
            unpacked[name] = store, _print(store)
        return unpacked[name][0]

    yield get
    for name, (store, before) in unpacked.items():
        assert _print(store) == before, f"a test wrote to the shared store {name}: use golden_copy"


@pytest.fixture
def golden_copy(tmp_path: Path) -> GetStore:
    """`golden_copy(name)`: a fresh copy of a golden store for this test alone, each time."""
    count = 0

    def get(name: str) -> Path:
        nonlocal count
        count += 1
        return unpack(name, tmp_path / f"golden-{count}")

    return get


@pytest.fixture(scope="session")
def shared_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningNode]:
    """The node of this process, for tests that need just a node (tests/support/shared_node.py)."""
    root = tmp_path_factory.mktemp("shared") / "store"
    with RunningNode(root, shared.SETTINGS, queue_workers=1, readers=1) as running:
        running.wait_all_run()
        yield running


@pytest.fixture(scope="session")
def fault_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library that puts faults into the calls of a process; compiled once."""
    return build_library(tmp_path_factory.mktemp("faults"))


@pytest.fixture
def faults(tmp_path: Path, fault_library: Path) -> DiskFaults:
    """A disk that does as this test wants, for processes started with `faults.env`."""
    folder = tmp_path / "faults"
    folder.mkdir()
    return DiskFaults(folder, fault_library)


@pytest.fixture(scope="module", params=["compiled", "numpy"])
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """`compiled` or `numpy`: which of the two the module's tests run with."""
    wanted: str = request.param
    found = loader.kernel if wanted == "compiled" else None
    if wanted == "compiled" and found is None:
        pytest.skip("this installation has no compiled kernel")
    with using(found):
        yield wanted


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Figures that tests recorded by `record_property` with a number, summed up by name."""
    sums: dict[str, int] = {}
    for report in terminalreporter.getreports("") + terminalreporter.getreports("passed"):
        if report.when == "call":
            for name, value in report.user_properties:
                if isinstance(value, int):
                    sums[name] = sums.get(name, 0) + value
    for name, value in sums.items():
        terminalreporter.write_line(f"{name}: {value:,}")
