"""Which address a writer puts into its records as the store host."""

import pytest

from node.runtime import addresses
from node.writer import store
from node.writer.store import store_host_of


@pytest.mark.parametrize(
    ("bind", "advertise", "host"),
    [
        ("tcp://10.0.0.7:7851", "", "10.0.0.7:7850"),
        ("tcp://127.0.0.1:7851", "192.0.2.7", "192.0.2.7:7850"),
        ("tcp://0.0.0.0:7851", "192.0.2.7", "192.0.2.7:7850"),
        ("tcp://127.0.0.1:7851", "0.0.0.0", "198.51.100.1:7850"),
        *[("tcp://10.0.0.7:7851", given, "10.0.0.7:7850") for given in ("db7", "2001:db8::7")],
        *[(f"tcp://{any_}:7851", "", "198.51.100.1:7850") for any_ in ("0.0.0.0", "*", "[::]")],
        ("tcp://[::1]:7851", "db7", "198.51.100.1:7850"),
    ],
)
def test_the_store_host_is_the_ipv4_address_that_others_know_best(
    bind: str, advertise: str, host: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "first_ipv4", lambda: "198.51.100.1")
    assert str(store_host_of(bind, 7850, advertise)) == host


def test_the_first_address_of_a_machine_is_one_of_its_own_and_never_fails() -> None:
    found = addresses.first_address()
    assert found == "127.0.0.1" or not found.startswith(("127.", "169.254."))
