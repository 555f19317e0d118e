"""The decision about a need, against RocketMQ's own class, and what it does not decide alone."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.access.decision import (
    ALL_OF_KIND,
    Action,
    Entry,
    Kind,
    Need,
    deciding_entry,
    parse_resource,
)
from protocol.errors import RefusedError
from tests.interop.access_cases import COUNT, Case, cases, golden


def entries_of(rows: list[Case]) -> list[Entry]:
    return [
        Entry(
            parse_resource(row["resource"]),
            frozenset(map(Action, row["actions"])),
            row["decision"] == "Allow",
            tuple(row.get("sourceIps", ())),
        )
        for row in rows
    ]


def outcome_of(case: Case) -> str:
    need = Need(Kind(case["kind"]), case["name"], frozenset(map(Action, case["actions"])))
    lists = entries_of(case["custom"]), entries_of(case["default"])
    found = deciding_entry(*lists, need, case["source"])
    return "Nothing" if found is None else "Allow" if found.allow else "Deny"


@pytest.mark.attack(46)
def test_each_of_5000_cases_is_decided_as_rocketmq_decides_it() -> None:
    rows = golden()
    assert len(rows) == COUNT
    assert [row for row in rows if outcome_of(row) != row["outcome"]] == []


def test_the_golden_cases_are_those_of_the_generator_and_have_every_outcome() -> None:
    rows = golden()
    counts = Counter(row.pop("outcome") for row in rows)
    assert rows == cases()
    assert min(counts.values()) > COUNT // 10
    assert set(counts) == {"Allow", "Deny", "Nothing"}


def need(name: str, action: Action = Action.PUB) -> Need:
    return Need(Kind.TOPIC, name, frozenset((action,)))


def decides(resource: str, wanted: Need, source: str = "", sources: tuple[str, ...] = ()) -> bool:
    entry = Entry(parse_resource(resource), frozenset((Action.PUB,)), True, sources)
    return deciding_entry([entry], [], wanted, source) is entry


@pytest.mark.attack(44)
def test_a_star_within_a_name_is_a_letter_and_a_prefix_minds_case() -> None:
    assert decides("Topic:a*b", need("a*b"))
    assert not decides("Topic:a*b", need("aab"))
    assert decides("Topic:orders*", need("orders-eu"))
    assert not decides("Topic:orders*", need("Orders-eu"))
    assert str(parse_resource("Topic:a*b*")) == "Topic:a*"


@pytest.mark.attack(45)
@pytest.mark.parametrize(
    ("network", "source", "counts"),
    [
        ("10.0.0.1", "::ffff:10.0.0.1", True),
        ("10.0.0.1/8", "10.255.0.1", True),
        ("10.0.0.0/8", "::ffff:10.9.9.9", True),
        ("10.0.0.0/8", "11.0.0.1", False),
        ("0.0.0.0/0", "fd00::1", False),
        ("::/0", "::ffff:10.0.0.1", False),
        ("10.0.0.0/8", "", False),
        # Other ways to write an IPv4 address into an IPv6 one are other addresses.
        ("10.0.0.0/8", "::a00:1", False),
        ("10.0.0.0/8", "64:ff9b::a00:1", False),
        ("10.0.0.0/8", "2002:a00:1::1", False),
        ("10.0.0.0/8", "::ffff:0:a00:1", False),
        ("10.0.0.0/8", "fe80::5efe:a00:1", False),
    ],
)
def test_an_address_in_ipv6_form_is_the_ipv4_one_and_reaches_nothing_more(
    network: str, source: str, counts: bool
) -> None:
    assert decides("Topic:t", need("t"), source, (network,)) is counts


@pytest.mark.parametrize("text", ["", "Topic", "Topic:", "Queue:t", "*:t", ":t"])
def test_what_names_no_resource_is_refused(text: str) -> None:
    with pytest.raises(RefusedError):
        parse_resource(text)


@given(st.sampled_from(["Topic", "topic", "TOPIC"]), st.text(min_size=1, max_size=5))
def test_the_text_of_a_resource_names_the_same_resource(kind: str, name: str) -> None:
    found = parse_resource(f"{kind}:{name}")
    assert parse_resource(str(found)) == found


ALL_TOPICS = Need(Kind.TOPIC, ALL_OF_KIND, frozenset((Action.SUB,)))


def gets_all(*rows: tuple[str, str, bool], default: tuple[str, str, bool] | None = None) -> bool:
    def entry(resource: str, action: str, allow: bool) -> Entry:
        return Entry(parse_resource(resource), frozenset((Action(action),)), allow)

    others = [] if default is None else [entry(*default)]
    found = deciding_entry([entry(*row) for row in rows], others, ALL_TOPICS, "10.0.0.1")
    return found is not None and found.allow


def test_whoever_may_not_have_one_topic_may_not_have_all_of_them() -> None:
    every = ("Topic:*", "Sub", True)
    assert gets_all(every)
    assert not gets_all(every, ("Topic:secret", "Sub", False))
    assert not gets_all(("*", "All", True), ("Topic:sec*", "All", False))
    assert not gets_all(("Topic:secret", "Sub", False), default=every)
    assert not gets_all(every, ("Topic:*", "Sub", False))


def test_a_deny_of_other_things_leaves_all_topics() -> None:
    every = ("Topic:*", "Sub", True)
    assert gets_all(every, ("Topic:secret", "Pub", False))
    assert gets_all(every, ("Group:secret", "Sub", False))
    assert gets_all(every, ("Topic:secret", "Sub", True))
    # Default entries say nothing where a custom one matches every name.
    assert gets_all(every, default=("Topic:secret", "Sub", False))
    assert not gets_all(("Topic:a*", "Sub", True))


def test_a_deny_that_does_not_count_from_here_takes_nothing_away() -> None:
    every = Entry(parse_resource("Topic:*"), frozenset((Action.SUB,)), True)
    far = Entry(parse_resource("Topic:s"), frozenset((Action.SUB,)), False, ("10.9.0.0/16",))
    assert deciding_entry([every, far], [], ALL_TOPICS, "10.0.0.1") is every
    assert deciding_entry([every, far], [], ALL_TOPICS, "10.9.0.1") is far
