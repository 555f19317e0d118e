"""A node with users: who has logged in sees what the list of that user allows, and no more."""

import base64
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from keelog.console.node_link import NodeLink
from keelog.console.viewers import Door
from node.access.user_table import UserTable, replace_user_table
from node.access.users_file import read_users, write_users
from node.runtime.settings import Settings
from protocol.access.changes import Change
from tests.console.shown_store import Shown, place
from tests.support.console import HTML, SAME, Reply, Site, served

pytestmark = [pytest.mark.process, pytest.mark.xdist_group("console")]

SECRETS = {"root": "the-secret-of-root", "ann": "the-secret-of-ann"}


def made_users(root: Path) -> None:
    """An operator, and one who may read `orders`, and look at the group `billing`."""
    entries = [
        {"resource": "Topic:orders", "actions": ["Sub"], "decision": "Allow"},
        {"resource": "Group:billing", "actions": ["Get"], "decision": "Allow"},
    ]
    wanted = [
        user("root", {"userType": "Super"}),
        user("ann", {"userType": "Normal"}),
        Change("create_acl", "User:ann", json.dumps({"policies": [{"entries": entries}]}).encode()),
    ]
    replace_user_table(root, wanted, 1)


def user(name: str, more: dict[str, str]) -> Change:
    return Change("create_user", name, json.dumps({"password": SECRETS[name], **more}).encode())


@pytest.fixture
def guarded(shown: Shown, tmp_path: Path) -> Iterator[Site]:
    """The console of a node with users; the node itself is the one that all share."""
    made_users(tmp_path)
    door = Door(UserTable(tmp_path), Settings(), False, "DefaultCluster")
    with served(NodeLink(shown.node.endpoint), door) as site:
        yield site


def basic(name: str, password: str = "") -> dict[str, str]:
    text = base64.b64encode(f"{name}:{password or SECRETS[name]}".encode()).decode()
    return {"Authorization": f"Basic {text}", **HTML}


def get(site: Site, path: str, name: str) -> Reply:
    return site.ask(path, basic(name))


def test_nobody_sees_a_page_before_the_login(guarded: Site) -> None:
    for path in ("/", "/topics", "/topics/orders", "/topics/orders?as=jsonl", "/node", "/help"):
        assert guarded.ask(path, HTML).status == 401
    assert "Password" in guarded.ask("/topics/orders", HTML).text


def test_a_login_by_the_form_opens_a_session_for_that_user(guarded: Site) -> None:
    reply = guarded.ask("/unlock", SAME, {"name": "ann", "password": SECRETS["ann"]})
    assert reply.status == 303
    cookie = {"Cookie": reply.headers["set-cookie"].partition(";")[0], **HTML}
    assert guarded.ask("/topics/orders", cookie).status == 200
    assert guarded.ask("/topics/bodies", cookie).status == 403


@pytest.mark.parametrize(("name", "password"), [("ann", "wrong"), ("nobody", "x"), ("", ":")])
def test_a_wrong_password_and_an_unknown_user_get_the_same_answer(
    guarded: Site, name: str, password: str
) -> None:
    reply = guarded.ask("/topics", {**HTML, **basic(name, password)})
    assert reply.status == 401
    assert "the name or the password is wrong" in reply.text


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/topics/orders", 200), ("/topics/orders/0/0", 200), ("/topics/orders/queues", 200),
        ("/topics/orders?as=csv", 200), ("/groups/billing", 200), ("/topics/bodies", 403),
        ("/topics/bodies/0/0", 403), ("/topics/bodies/0/0/body", 403),
        ("/topics/bodies?as=jsonl", 403), ("/topics/rmq_sys_wheel_timer", 403),
        ("/topics/~DLQ~billing", 403), ("/dead/billing", 403), ("/groups/other", 403),
        ("/store", 403), ("/node", 403), ("/node/log", 403), ("/", 200), ("/topics", 200),
        ("/waiting", 200), ("/dead", 200), ("/help", 200),
    ],
)  # fmt: skip
def test_each_page_asks_for_the_right_to_what_it_shows(
    guarded: Site, path: str, status: int
) -> None:
    assert get(guarded, path, "ann").status == status
    if path != "/groups/other":
        assert get(guarded, path, "root").status == 200


def test_lists_are_cut_to_what_the_user_may_see(guarded: Site) -> None:
    text = get(guarded, "/topics?kind=all", "ann").text
    assert "/topics/orders" in text
    for hidden in ("/topics/bodies", "/topics/quiet", "formulas", "~DLQ~"):
        assert hidden not in text
        assert hidden.strip("/") in get(guarded, "/topics?kind=all", "root").text
    assert "billing" in get(guarded, "/groups", "ann").text
    assert "later" in get(guarded, "/waiting", "ann").text  # it waits for orders
    assert "dead" not in get(guarded, "/dead?as=jsonl", "ann").text


def test_figures_of_the_whole_node_are_for_who_may_look_at_it(guarded: Site) -> None:
    mine, all_of_it = get(guarded, "/", "ann").text, get(guarded, "/", "root").text
    assert "Processes" in all_of_it
    assert "Processes" not in mine
    assert "not on disk yet" not in mine


def test_ids_and_searches_reach_no_message_of_another_topic(guarded: Site, shown: Shown) -> None:
    hidden = next(iter(shown.client.find("bodies", "nasty", limit=1)))
    for path in (
        f"/m/{hidden.msg_id}", f"/log/{hidden.physical_offset}", f"/find?q={hidden.msg_id}",
        f"/find?q=@{hidden.physical_offset}", "/find?q=nasty+topic:bodies",
    ):  # fmt: skip
        reply = get(guarded, path, "ann")
        assert reply.status in (200, 403), path
        assert hidden.unique_key not in reply.text
        assert "location" not in reply.headers or "bodies" not in reply.headers["location"]
    assert "/topics/bodies" not in get(guarded, "/find?q=nasty", "ann").text
    assert get(guarded, f"/m/{hidden.msg_id}", "root").status == 303


def test_a_message_that_waits_counts_as_one_of_its_real_topic(guarded: Site, shown: Shown) -> None:
    timer = "/topics/rmq_sys_wheel_timer/0/0"
    assert get(guarded, timer, "ann").status == 403  # the page is the system's topic
    assert get(guarded, timer, "root").status == 200
    assert place(shown.client, "orders", "order-1").startswith("/topics/orders/")


def test_a_user_who_is_taken_away_or_gets_another_password_is_out_at_once(
    guarded: Site, tmp_path: Path
) -> None:
    reply = guarded.ask("/unlock", SAME, {"name": "ann", "password": SECRETS["ann"]})
    cookie = {"Cookie": reply.headers["set-cookie"].partition(";")[0], **HTML}
    assert guarded.ask("/topics/orders", cookie).status == 200
    table = read_users(tmp_path)[0]
    kept = {name: one for name, one in table.users.items() if name != "ann"}
    write_users(tmp_path, type(table)(kept, {}, table.revision + 1))
    guarded.console._door._table._looked_at = float("-inf")  # type: ignore[union-attr]
    assert guarded.ask("/topics/orders", cookie).status == 401
