"""Rows of every golden store equal what RocketMQ says of it. As tasks give them, without Spark."""

from collections import defaultdict

import pytest

from tests.pipeline.facts_as_rows import (
    assert_index_is,
    comparable,
    message_row,
    options_for,
    read_rows,
    unit_row,
)
from tests.support.golden import STORES, GetStore, facts

EVERY_STORE = pytest.mark.parametrize("name", STORES)
CUTS = pytest.mark.parametrize("cuts", [{}, {"minPartitions": "7"}], ids=["whole", "in-parts"])


@CUTS
@EVERY_STORE
def test_a_full_read_has_every_record_in_log_order(
    golden: GetStore, name: str, cuts: dict[str, str]
) -> None:
    known = facts(name)
    rows = read_rows(path=str(golden(name)), **options_for(name, known, **cuts))
    assert comparable(rows, known) == [message_row(fact, name) for fact in known.messages]


@CUTS
@EVERY_STORE
def test_a_read_by_queues_has_the_messages_that_units_lead_to(
    golden: GetStore, name: str, cuts: dict[str, str]
) -> None:
    known = facts(name)
    options = options_for(name, known, subscribePattern=".*", **cuts)
    rows = read_rows(path=str(golden(name)), **options)
    at = {fact["physicalOffset"]: message_row(fact, name) for fact in known.messages}
    expected = [at[fact["physicalOffset"]] for fact in known.queue_units]
    by_place = sorted(comparable(rows, known), key=lambda row: int(row["physicalOffset"]))
    assert by_place == sorted(expected, key=lambda row: int(row["physicalOffset"]))
    seen: dict[tuple[str, int], list[int]] = defaultdict(list)
    for row in rows:
        seen[row["topic"], row["queueId"]].append(row["queueOffset"])
    assert all(offsets == sorted(offsets) for offsets in seen.values())


@EVERY_STORE
def test_the_queues_table_has_rocketmqs_units(golden: GetStore, name: str) -> None:
    known = facts(name)
    options = options_for(name, known, table="queues", minPartitions="3")
    rows = read_rows(path=str(golden(name)), **options)
    rows.sort(key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]))
    assert rows == sorted(
        (unit_row(fact, name) for fact in known.queue_units),
        key=lambda row: (row["topic"], row["queueId"], row["queueOffset"]),
    )


@EVERY_STORE
def test_the_index_table_answers_rocketmqs_queries(golden: GetStore, name: str) -> None:
    known = facts(name)
    options = options_for(name, known, table="index", minPartitions="3")
    assert_index_is(read_rows(path=str(golden(name)), **options), known)
