"""Looks at a node: one for all viewers, none while nobody looks, and the last one stays."""

import pytest

from keelog.client.results import Health, NodeStatus
from keelog.console.node_link import (
    GROWTH_S_MAX,
    GROWTHS_MAX,
    LOOK_EVERY_S,
    TRY_AGAIN_S,
    Growths,
    NodeLink,
    whole,
)
from protocol.errors import NotConnected

RAW = {
    "ready": True, "store": "/data/orders-a", "processes": [], "operations": [],
    "log": {"records": 0, "appended": 0, "flushed": 0}, "disk": {"used_ratio": 0.5},
}  # fmt: skip


class Asked:
    """A client that counts how often it is asked, and grows by a hundred messages each time."""

    def __init__(self) -> None:
        self.looks = 0
        self.is_away = False

    def status(self, _timeout: float) -> NodeStatus:
        if self.is_away:
            raise NotConnected("nobody listens there")
        self.looks += 1
        records = 100 * self.looks
        return NodeStatus.of({**RAW, "log": {**RAW["log"], "records": records}})  # type: ignore[dict-item]

    def health(self, _timeout: float) -> Health:
        return Health(True, (), {})


class Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def looked(monkeypatch: pytest.MonkeyPatch) -> tuple[NodeLink, Asked, Clock]:
    clock, asked = Clock(), Asked()
    link = NodeLink("tcp://127.0.0.1:1", clock=clock)
    monkeypatch.setattr(NodeLink, "client", property(lambda _: asked))
    return link, asked, clock


def test_many_viewers_cost_the_node_one_look_a_second(
    looked: tuple[NodeLink, Asked, Clock],
) -> None:
    link, asked, clock = looked
    assert asked.looks == 0
    for _ in range(50):
        link.state()
    assert asked.looks == 1
    clock.now += LOOK_EVERY_S
    for _ in range(50):
        link.state()
    assert asked.looks == 2


def test_rates_are_those_between_two_looks(looked: tuple[NodeLink, Asked, Clock]) -> None:
    link, _, clock = looked
    assert link.state().figures is None
    clock.now += 2.0
    figures = link.state().figures
    assert figures is not None
    assert figures["rates"]["records_per_s"] == 50.0
    assert [one.in_per_s for one in link.points()] == [50.0]


def test_the_last_look_stays_with_its_age_while_the_node_is_away(
    looked: tuple[NodeLink, Asked, Clock],
) -> None:
    link, asked, clock = looked
    link.state()
    asked.is_away = True
    clock.now += 8.0
    state = link.state()
    assert state.look is not None
    assert state.age_s == 8.0
    assert isinstance(state.trouble, NotConnected)
    asked.is_away = False
    clock.now += TRY_AGAIN_S
    state = link.state()
    assert (state.age_s, state.trouble) == (0.0, None)


def test_a_growth_is_counted_from_a_look_that_is_old_enough_and_not_too_old() -> None:
    growths = Growths()
    assert growths.note("lag", 0, 0.0, 15.0) is None
    assert growths.note("lag", 900, 2.0, 15.0) is None
    assert growths.note("lag", 1_500, 15.0, 15.0) == 100.0
    assert growths.note("lag", 0, 16.0, 15.0) == 100.0
    assert growths.note("lag", 0, 15.0 + GROWTH_S_MAX, 15.0) is None
    for number in range(GROWTHS_MAX + 10):
        growths.note(str(number), 0, 0.0)
    assert len(growths._last) == GROWTHS_MAX


def test_a_node_of_an_earlier_version_says_less_and_has_pages() -> None:
    assert whole({"log": {"appended": 7}})["log"] == {"appended": 7}
    assert whole({})["followers"] == {"followers": []}
