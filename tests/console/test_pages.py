"""Pages of a running node, by HTTP: what a reader finds, and what a page must not do."""

import csv
import io
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from keelog.console.routes import ROUTES
from tests.console.shown_store import FORMULA, LONGEST, ORDERS, Shown, place
from tests.console.test_gate import protects
from tests.support.console import HTML, Reply, ask
from tests.support.node import wait_until

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("console")]


def get(shown: Shown, path: str, **headers: str) -> Reply:
    return ask(shown.port, path, {**HTML, **headers})


def page(shown: Shown, path: str) -> str:
    reply = get(shown, path)
    assert reply.status == 200, reply.text[:2_000]
    assert protects(reply) == []
    return reply.text


PATHS = (
    "/", "/topics", "/topics?kind=all", "/topics/orders", "/topics/orders/queues",
    "/topics/orders/groups", "/topics/orders/0/0", "/find", "/find?q=c-3", "/groups",
    "/groups/billing", "/dead", "/dead/billing", "/waiting", "/store", "/node", "/node/log",
    "/help", "/unlock",
)  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_every_page_is_there_and_a_part_of_it_is_enough_to_refresh_it(
    shown: Shown, path: str
) -> None:
    whole = page(shown, path)
    part = get(shown, path, **{"Keelog-Part": "1"})
    assert part.status == 200
    assert "<html" not in part.text
    assert '<main id="main"' in part.text
    assert len(part.text) < len(whole)


# -- finding ----------------------------------------------------------------------------------


def test_an_id_in_the_box_leads_to_its_message(shown: Shown) -> None:
    receipt = shown.client.send("orders", b"to be found", keys="needle")
    found = get(shown, f"/find?q={receipt.msg_id.lower()}")
    assert found.status == 303
    assert found.headers["location"] == (
        f"/topics/orders/{receipt.queue_id}/{receipt.queue_offset}"
    )
    assert get(shown, f"/m/{receipt.msg_id}").headers["location"] == found.headers["location"]


def test_a_key_with_its_topic_leads_to_its_message(shown: Shown) -> None:
    found = get(shown, "/find?q=order-17+topic:orders")
    assert found.status == 303
    assert found.headers["location"] == place(shown.client, "orders", "order-17")


def test_a_key_is_looked_for_in_all_topics_and_all_hits_are_shown(shown: Shown) -> None:
    text = page(shown, "/find?q=c-3")
    assert len(re.findall(r"<tr data-row", text)) == len(range(3, ORDERS, 7))


@pytest.mark.parametrize(
    ("text", "place"), [("orders 2/5", "/topics/orders/2/5"), ("orders", "/topics/orders")]
)
def test_a_place_and_a_topic_lead_there(shown: Shown, text: str, place: str) -> None:
    assert get(shown, f"/find?q={text.replace(' ', '+')}").headers["location"] == place


def test_what_is_nowhere_says_how_it_was_read(shown: Shown) -> None:
    text = page(shown, "/find?q=no-such-thing")
    assert "None." in text
    assert "a key in all topics" in text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/m/7F000001000029FA000000000000FFFF", 404),
        (f"/m/{'F' * 32}", 404),
        (f"/m/{'0' * 33}", 404),
        ("/log/123456789", 404),
        ("/topics/orders/0/99999", 404),
        ("/topics/orders/99999/0", 400),
        ("/topics/orders/7/0", 404),
        ("/topics/nowhere", 404),
        ("/groups/nobody", 404),
        ("/dead/nobody", 404),
    ],
)
def test_what_is_not_there_has_a_page_that_says_so(shown: Shown, path: str, status: int) -> None:
    reply = get(shown, path)
    assert reply.status == status, reply.text[-900:]
    assert '<main id="main"' in reply.text
    assert protects(reply) == []


def test_a_message_that_is_gone_offers_its_neighbours(shown: Shown) -> None:
    text = get(shown, "/topics/orders/0/99999").text
    assert "is not stored yet" in text
    assert "/topics/orders/0/0" in text


def test_names_that_are_only_signs_and_the_longest_have_pages(shown: Shown) -> None:
    assert "dead" in page(shown, place(shown.client, "%DLQ%billing", "order-3"))
    assert "long" in page(shown, f"/topics/{LONGEST}")
    shown.client.create_topic("%")
    shown.client.create_topic("a|b%c")
    assert "No message is stored" in page(shown, "/topics/~")
    assert "a|b%c" in page(shown, "/topics/a!b~c")


# -- a topic ----------------------------------------------------------------------------------


def rows_of(text: str) -> list[str]:
    """The places that a page of messages shows, in its order."""
    return re.findall(r'id="m-(\d+-\d+)"', text)


def next_of(text: str) -> str:
    found = re.search(r'rel="next" href="([^"]+)"', text)
    return "" if found is None else found[1].replace("&amp;", "&")


@pytest.mark.parametrize("start", ["/topics/orders", "/topics/orders?at=start"])
def test_pages_of_a_topic_show_each_message_once_in_the_order_of_the_log(
    shown: Shown, start: str
) -> None:
    seen: list[str] = []
    path = start
    while path:
        text = page(shown, path)
        seen += rows_of(text)
        path = next_of(text)
    queues = shown.client.offsets("orders")
    assert len(seen) == len(set(seen)) == sum(one.max_offset for one in queues)
    places = [
        shown.client.get(topic="orders", queue_id=int(q), queue_offset=int(o)).physical_offset
        for q, _, o in (one.partition("-") for one in seen)
    ]
    assert places == sorted(places, reverse="at=start" not in start)


def test_a_text_is_found_and_the_page_says_how_much_it_looked_at(shown: Shown) -> None:
    text = page(shown, '/topics/orders?q="order": 17,'.replace('"', "%22").replace(" ", "+"))
    assert len(rows_of(text)) == 1
    assert "looked at 13" in text
    assert "that is all of them" in text


def test_a_search_that_may_cost_no_more_goes_on_where_it_ended(
    shown: Shown, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen, path, pages = [], "/topics/orders?tag=paid&rows=20", 0
    while path:
        text = page(shown, path)
        seen += rows_of(text)
        path, pages = next_of(text), pages + 1
    assert pages > 2
    assert len(seen) == len(set(seen)) == ORDERS // 2


@pytest.mark.parametrize("at", ["-15m", "2020-01-01T00:00", "@1600000000000", "%2B1", "0"])
def test_a_place_in_time_or_in_the_queue_is_understood(shown: Shown, at: str) -> None:
    text = page(shown, f"/topics/orders?at={at}")
    assert rows_of(text)
    assert 'id="mistake"' not in text


@pytest.mark.parametrize("at", ["yesterday", "15m ago", "-", "2020-13-01", "<b>"])
def test_a_place_that_is_none_stays_in_its_field_and_says_why(shown: Shown, at: str) -> None:
    text = page(shown, f"/topics/orders?at={at.replace(' ', '+')}")
    assert 'id="mistake"' in text
    assert f'name="at" value="{at.replace("<", "&lt;").replace(">", "&gt;")}"' in text


def test_a_topic_without_messages_says_what_would_be_there(shown: Shown) -> None:
    assert "No message is stored" in page(shown, "/topics/quiet")


def test_the_filter_of_topics_counts_and_keeps_its_text(shown: Shown) -> None:
    text = page(shown, "/topics?q=orD")
    assert 'value="orD"' in text
    assert "/topics/orders" in text
    assert "/topics/quiet" not in text


# -- a message --------------------------------------------------------------------------------


def test_a_message_shows_all_that_is_stored_of_it(shown: Shown) -> None:
    text = page(shown, place(shown.client, "orders", "order-17"))
    message = next(iter(shown.client.find("orders", "order-17")))
    for wanted in (message.msg_id, message.unique_key, "trace", "t17", "c-3"):
        assert wanted in text
    assert f'data-ms="{message.store_timestamp}"' in text


def test_a_message_says_how_far_each_group_is(shown: Shown) -> None:
    first, later = page(shown, "/topics/orders/0/0"), page(shown, "/topics/orders/0/4")
    assert "passed" in first
    assert "not yet" in later
    assert "3 before it" in later


def test_a_message_that_was_retried_or_given_up_says_so(shown: Shown) -> None:
    message = next(iter(shown.client.find("orders", "order-9", limit=1)))
    for topic, times in (("%RETRY%billing", 2), ("%DLQ%billing", 16)):
        shown.client.send(
            topic, message.body, reconsume_times=times, queue_id=0, unique_key=message.unique_key
        )
    path = place(shown.client, "orders", "order-9")
    wanted = ("dead letter", "tried 2 times")
    wait_until(lambda: all(one in page(shown, path) for one in wanted), "they are not found")


@pytest.mark.parametrize(
    ("key", "wanted"),
    [
        ("large", "page 1 of"),
        ("one-line", "page 1 of 16"),
        ("random", 'aria-current="true">hex'),
        ("msgpack", 'aria-current="true">msgpack'),
        ("packed", "unpacked from zlib"),
        ("bomb", "only the first"),
        ("bidi", "\\u202e"),
    ],
)
def test_bodies_of_all_kinds_are_shown_within_a_page(shown: Shown, key: str, wanted: str) -> None:
    text = page(shown, place(shown.client, "bodies", key))
    assert wanted in text
    assert len(text) < 260_000


def test_a_body_is_downloaded_as_it_was_sent_and_never_shown_by_the_browser(shown: Shown) -> None:
    reply = get(shown, place(shown.client, "bodies", "one-line") + "/body")
    assert reply.data == b"y" * (1 << 20)
    assert reply.headers["content-type"] == "application/octet-stream"
    assert reply.headers["content-disposition"].startswith("attachment; filename=")
    assert reply.headers["content-security-policy"].startswith("sandbox")


def test_nothing_of_a_message_is_ever_html(shown: Shown) -> None:
    paths = (
        place(shown.client, "bodies", "nasty"), "/topics/nasty",
        "/topics/bodies", "/groups", f"/find?q={'%3Cscript%3E'}", "/topics?q=%3Cscript%3E",
        "/topics/orders?at=%3Cscript%3E", "/node/log?q=%3Cscript%3E",
    )  # fmt: skip
    for path in paths:
        text = page(shown, path)
        assert "<script>alert" not in text
        assert "<img src=x" not in text
        assert 'href="javascript:' not in text


# -- lists as files ---------------------------------------------------------------------------


def test_json_lines_are_those_of_consume(shown: Shown) -> None:
    ours = [json.loads(line) for line in get(shown, "/topics/orders?as=jsonl").text.splitlines()]
    command = [sys.executable, "-m", "keelog", "consume", "orders", "--from", "start", "-e",
               "--merge", "--format", "jsonl", "--node", shown.node.endpoint]  # fmt: skip
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert ours == [json.loads(line) for line in said.splitlines()]
    assert len(ours) >= ORDERS


def test_a_file_is_bounded_by_its_limit(shown: Shown) -> None:
    assert len(get(shown, "/topics/orders?as=jsonl&limit=7").text.splitlines()) == 7
    assert get(shown, "/topics/orders?as=jsonl&limit=x").status == 400


def test_no_cell_of_a_csv_is_a_formula(shown: Shown) -> None:
    rows = list(csv.DictReader(io.StringIO(get(shown, "/topics/formulas?as=csv").text)))
    assert rows[0]["body"] == f"'{FORMULA}"
    assert rows[0]["tags"] == "'@x"


@pytest.mark.parametrize(
    "path", ["/topics", "/topics/orders/queues", "/topics/orders/groups", "/groups",
             "/groups/billing", "/dead", "/dead/billing", "/waiting"],
)  # fmt: skip
def test_every_list_is_a_file_too(shown: Shown, path: str) -> None:
    for kind in ("jsonl", "csv"):
        reply = get(shown, f"{path}?as={kind}")
        assert reply.status == 200
        assert reply.headers["content-disposition"] == (
            f'attachment; filename="{reply.headers["content-disposition"].split(chr(34))[1]}"'
        )
        assert reply.headers["content-security-policy"].startswith("sandbox")
        assert reply.text
        assert protects(reply) == []


# -- the operator -----------------------------------------------------------------------------


def test_the_start_page_shows_who_is_late_and_what_runs(shown: Shown) -> None:
    wait_until(lambda: "billing" in page(shown, "/"), "no group is late", 20.0)
    text = page(shown, "/")
    for wanted in ("writer 0", "console 0", "Dead letters", "ready"):
        assert wanted in text


def test_a_message_that_waits_says_where_it_will_go(shown: Shown) -> None:
    text = page(shown, "/waiting")
    found = re.search(r'href="(/topics/rmq_sys_wheel_timer/0/\d+)"', text)
    assert found is not None
    assert "This message waits" in page(shown, found[1])


def test_the_commands_that_pages_show_are_true(shown: Shown) -> None:
    for path in ("/topics", "/topics/orders", "/topics/orders/queues", "/topics/orders/0/0",
                 "/groups", "/groups/billing", "/dead/billing"):  # fmt: skip
        text = page(shown, path)
        found = re.search(r'<code id="command"[^>]*>([^<]+)</code>', text)
        assert found is not None, path
        words = found[1].split(" ")
        assert words[0] == "keelog"
        done = subprocess.run(
            [sys.executable, "-m", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"{found[1]}: {done.stderr}"


def test_the_key_is_nowhere_but_in_its_file(shown: Shown) -> None:
    key = (shown.node.root / "keelog" / "run" / "console.key").read_text().strip()
    reply = ask(shown.port, "/unlock", {"Sec-Fetch-Site": "same-origin"}, {"key": key})
    assert reply.status == 303
    cookie = reply.headers["set-cookie"].partition(";")[0]
    for path in PATHS:
        assert key not in get(shown, path, Cookie=cookie).text
    assert key not in shown.node.stderr
    assert key not in json.dumps(dict(shown.client.status().raw))
    for process in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            assert key.encode() not in process.read_bytes()
        except OSError:
            continue


def test_nobody_who_looks_costs_the_node_nothing_and_many_cost_as_one(shown: Shown) -> None:
    def asked() -> int:
        rows = {row["op"]: row["requests"] for row in shown.client.status().raw["operations"]}
        return sum(count for op, count in rows.items() if op not in ("other", "append"))

    before = asked()
    for _ in range(20):
        page(shown, "/help")
    assert asked() == before  # the strip asks the supervisor alone


def test_a_console_path_keeps_every_route_in_the_table() -> None:
    assert len({route.path for route in ROUTES}) == len(ROUTES)
