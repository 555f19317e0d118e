"""docs/spark.md says what the code does, and its programs run."""

import re
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from keelog.pipeline.errors import KINDS
from keelog.pipeline.options import TAKEN
from tests.support.damaged_store import Whole, make_store
from tests.support.node import RunningNode

README = Path(__file__).resolve().parents[2] / "README.md"
TEXT = (README.parent / "docs/spark.md").read_text(encoding="utf-8")
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.DOTALL | re.MULTILINE)
SMALL = ("mapped_file_size_commit_log=1048576", "max_index_num=1000")
OPTION = re.compile(r"^\| `([\w.]+)`(?:, `([\w.]+)`)? \| ([\w, ]+) \|", re.MULTILINE)


@pytest.mark.process
@pytest.mark.spark
@pytest.mark.xdist_group("spark")
@pytest.mark.timeout(300)
@pytest.mark.spark_long
def test_every_program_of_the_page_runs(spark: SparkSession, tmp_path: Path) -> None:
    store = make_store(tmp_path / "store", count=60)
    # Relative paths of the page are resolved by the driver's own Python, wherever that runs.
    places = {'"store"': repr(str(store.root))}
    folders = ("parquet", "derived", "joined")
    places |= {f'"{name}"': repr(str(tmp_path / name)) for name in folders}
    names: dict[str, Any] = {}
    with RunningNode(tmp_path / "node", SMALL, queue_workers=1, readers=1) as node:
        places['"tcp://127.0.0.1:7850"'] = repr(node.endpoint)
        blocks = BLOCK.findall(TEXT)
        for name, place in places.items():
            blocks = [block.replace(name, place) for block in blocks]
        assert len(blocks) >= 4
        blocks += [
            block.replace('"store"', places['"store"'])
            for block in BLOCK.findall(README.read_text(encoding="utf-8"))
            if "local_session" in block
        ]
        for block in blocks:
            exec(compile(block, "docs/spark.md", "exec"), names)
        node.wait_dispatched()
        ends = [queue.max_offset for queue in node.client.offsets("paid-orders")]
        assert sum(ends) == 2
        marked = [record for record in store.records if record.topic == "orders"]
        marked = [record for record in marked if record.tags == "A"]
        assert names["filled"].count() == names["marked"].count() == len(marked) > 0
    assert names["also_marked"].count() == len(marked)
    check_join(names, store)
    assert names["spark"] is spark
    assert names["messages"].count() == 60
    assert names["units"].count() == 60
    assert names["result"].rows == names["exported"].count() == 60
    assert (names["audited"].ok, names["made"].units) == (True, 60)
    assert names["lost"].count() == 0
    assert names["paid"].columns == ["queueOffset", "keys", "body", "storeTimestamp"]


def check_join(names: dict[str, Any], store: Whole) -> None:
    """The page's join and its counts by minute, against plain Python."""
    orders = [record for record in store.records if record.topic == "orders"]
    payments = [record for record in store.records if record.topic == "payments"]
    matches = [
        1
        for order in orders
        for payment in payments
        for key in order.keys
        if payment.head.store_timestamp >= order.head.store_timestamp
        for other in payment.keys
        if key == other
    ]
    assert names["settled_orders"].count() == len(matches) > 0
    counts = names["orders_per_minute"].collect()
    assert sum(row["messages"] for row in counts) == len(orders)
    assert sum(row["bytes"] for row in counts) == sum(len(record.body) for record in orders)


def test_the_page_has_every_option_with_its_tables() -> None:
    stated: dict[str, set[str]] = {}
    page = TEXT[TEXT.index("## Options") : TEXT.index("## Errors")]
    for first, second, tables in OPTION.findall(page):
        names = set(TAKEN) if tables == "all" else {name.strip() for name in tables.split(",")}
        stated |= {name: names for name in (first, second) if name}
    known = {
        option: {table for table, options in TAKEN.items() if option in options}
        for options in TAKEN.values()
        for option in options
        if option not in ("path", "paths")
    }
    assert stated == known


def test_the_page_has_every_condition() -> None:
    assert set(re.findall(r"^\| `\[(KEELOG_\w+)\]`", TEXT, re.MULTILINE)) == set(KINDS)
