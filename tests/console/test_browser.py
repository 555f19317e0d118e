"""The console in a browser: what people see, type and paste. `make console`."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, expect

from tests.console.browser import COLOURS, SHOTS, WIDTHS, Tab, chromium
from tests.console.shown_store import Shown, place
from tests.support.console import KEY, KnownNode, served
from tests.support.node import wait_until

pytestmark = [pytest.mark.browser, pytest.mark.xdist_group("browser"), pytest.mark.timeout(300)]

PAGES = {
    "overview": "/", "topics": "/topics?kind=all", "topic": "/topics/orders",
    "queues": "/topics/orders/queues", "topic-groups": "/topics/orders/groups",
    "message": "/topics/orders/0/3", "gone": "/topics/orders/0/9999", "find": "/find",
    "found": "/find?q=c-3", "groups": "/groups", "group": "/groups/billing", "dead": "/dead",
    "letters": "/dead/billing", "waiting": "/waiting", "store": "/store", "node": "/node",
    "log": "/node/log", "help": "/help", "unlock": "/unlock", "empty": "/topics/quiet",
}  # fmt: skip


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


Open = Callable[..., Tab]
MODULE = "document.querySelector('script[type=module]').src.replace('console.js', 'NAME')"
"""The address of another script beside that of the page."""
KINDS = ["large", "one-line", "random", "msgpack", "packed", "bomb", "bidi"]


@pytest.fixture
def opened(browser: Browser, shown: Shown) -> Iterator[Open]:
    """Opens tabs at the node that all tests share."""
    tabs: list[Tab] = []

    def open_tab(base: str = "", **options: Any) -> Tab:
        tabs.append(Tab(browser, base or f"http://127.0.0.1:{shown.port}", **options))
        return tabs[-1]

    yield open_tab
    for one in tabs:
        one.close()


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("colours", COLOURS)
def test_nobody_is_kept_out_of_any_page(opened: Open, colours: str, width: int) -> None:
    tab = opened(color_scheme=colours, viewport={"width": width, "height": 860})
    tab.goto("/")
    time.sleep(1.2)  # a second look, so that the start page has its lines
    found = {}
    for name, path in PAGES.items():
        page = tab.goto(path)
        found[name] = tab.violations()
        if page.evaluate("document.documentElement.scrollWidth") > width:
            found[name].append("it scrolls sideways")
        if SHOTS:
            Path(SHOTS).mkdir(parents=True, exist_ok=True)
            page.screenshot(path=Path(SHOTS) / f"{name}-{colours}-{width}.png")
    assert {name: faults for name, faults in found.items() if faults} == {}


def test_a_pasted_id_and_enter_lead_to_the_message(opened: Open, shown: Shown) -> None:
    message = next(iter(shown.client.find("orders", "order-17", limit=1)))
    page = opened().goto("/")
    page.keyboard.press("/")
    page.keyboard.type(message.msg_id)
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics/orders/*/*")
    expect(page.get_by_role("heading", level=1)).to_contain_text(
        f"{message.queue_id}/{message.queue_offset}"
    )


def test_a_key_and_a_topic_lead_there_too(opened: Open) -> None:
    page = opened().goto("/")
    page.get_by_label("Find an id, a key or a topic").fill("order-18 topic:orders")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics/orders/*/*")
    expect(page.locator("#body")).to_contain_text('"order": 18')


def test_the_address_of_a_message_shows_the_same_to_somebody_else(
    opened: Open, shown: Shown
) -> None:
    path = place(shown.client, "orders", "order-19")
    mine, other = opened().goto(path), opened().goto(path)
    assert mine.locator("#body").inner_text() == other.locator("#body").inner_text()


def test_a_false_place_stays_in_its_field_with_the_reason(opened: Open) -> None:
    page = opened().goto("/topics/orders")
    page.get_by_label("from").fill("yesterday")
    page.get_by_role("button", name="Show").click()
    expect(page.locator("#mistake")).to_contain_text("is not a place")
    assert page.get_by_label("from").input_value() == "yesterday"


def test_a_message_that_is_sent_appears_and_a_pause_holds_the_page(
    opened: Open, shown: Shown
) -> None:
    page = opened().goto("/topics/orders")
    shown.client.send("orders", b"appears by itself", keys="live")
    expect(page.locator("tbody tr").first).to_contain_text("appears by itself", timeout=4_000)
    page.keyboard.press("p")
    shown.client.send("orders", b"not while it rests")
    time.sleep(2.6)
    expect(page.locator("tbody tr").first).to_contain_text("appears by itself")
    page.keyboard.press("p")
    expect(page.locator("tbody tr").first).to_contain_text("not while it rests", timeout=4_000)


@pytest.mark.parametrize(
    "key", ["large", "one-line", "random", "msgpack", "packed", "bomb", "bidi"]
)
def test_bodies_of_all_kinds_are_painted_at_once(opened: Open, shown: Shown, key: str) -> None:
    tab = opened()
    began = time.monotonic()
    page = tab.goto(place(shown.client, "bodies", key))
    expect(page.locator("#body")).to_be_visible()
    assert time.monotonic() - began < 5.0
    assert page.evaluate("document.querySelectorAll('*').length") < 6_000


def test_a_node_that_goes_away_is_said_values_stay_and_it_comes_back(browser: Browser) -> None:
    node = KnownNode()
    with served(node) as site:
        tab = Tab(browser, f"http://127.0.0.1:{site.port}")
        page = tab.goto("/help")
        page.evaluate("document.getElementById('main').dataset.refresh = '0.3'")
        page.keyboard.press("r")
        expect(page.locator("#stale")).to_be_hidden()
        tab.context.set_offline(True)
        page.keyboard.press("r")
        expect(page.locator("#stale")).to_be_visible(timeout=5_000)
        expect(page.get_by_role("heading", level=1)).to_have_text("Keys and words")
        tab.context.set_offline(False)
        page.keyboard.press("r")
        expect(page.locator("#stale")).to_be_hidden(timeout=5_000)
        tab.said.clear()  # the browser says that it was offline
        tab.close()


def test_everything_is_reached_by_the_keyboard(opened: Open) -> None:
    page = opened().goto("/")
    for keys, path in (("gt", "/topics"), ("gg", "/groups"), ("gd", "/dead"), ("gw", "/waiting"),
                       ("gs", "/store"), ("gn", "/node"), ("go", "/")):  # fmt: skip
        page.keyboard.type(keys)
        page.wait_for_url(f"**{path}")
    page.keyboard.press("?")
    page.wait_for_url("**/help")
    page.goto(page.url.replace("/help", "/topics/orders?at=start"))
    page.keyboard.press("j")
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics/orders/*/*")
    before = page.url
    page.keyboard.press("j")
    page.wait_for_url(lambda url: url != before)
    page.keyboard.press("c")
    expect(page.locator("#said")).to_have_text("copied")


def test_letters_in_a_field_are_letters(opened: Open) -> None:
    page = opened().goto("/topics")
    page.get_by_label("name has").click()
    page.keyboard.type("gnjkp/")
    assert page.get_by_label("name has").input_value() == "gnjkp/"


def test_on_a_telephone_a_body_is_wide_enough_to_read(opened: Open) -> None:
    page = opened(viewport={"width": 390, "height": 844}).goto("/topics/orders")
    box = page.locator("td.text").first.bounding_box()
    assert box is not None
    assert box["width"] >= 260


def test_focus_selection_details_and_ticks_survive_refreshes(opened: Open) -> None:
    page = opened().goto("/topics")
    page.evaluate(
        """() => {
          const more = document.createElement('details');
          more.open = true;
          document.getElementById('main').querySelector('form').append(more);
        }"""
    )
    field = page.get_by_label("name has")
    field.fill("ord")
    field.evaluate("field => field.setSelectionRange(1, 3)")
    for _ in range(10):
        page.evaluate(f"import({MODULE}).then(m => m.refresh())".replace("NAME", "refresh.js"))
    found = page.evaluate(
        "[document.activeElement.name, document.activeElement.value,"
        " document.activeElement.selectionStart, document.activeElement.selectionEnd]"
    )
    assert found == ["q", "ord", 1, 3]


def test_without_scripts_every_page_reads_in_utc(opened: Open) -> None:
    tab = opened(java_script_enabled=False)
    for path in PAGES.values():
        page = tab.goto(path)
        expect(page.get_by_role("heading", level=1).first).to_be_attached()
    page = tab.goto("/topics/orders/0/3")
    expect(page.locator("dl.pairs time").first).to_contain_text("UTC")
    expect(page.get_by_role("link", name="refresh")).to_be_visible()
    page.get_by_label("Find an id, a key or a topic").fill("orders")
    page.keyboard.press("Enter")
    page.wait_for_url("**/topics/orders")


@pytest.mark.parametrize(("zone", "name"), [("Asia/Kathmandu", "UTC+5:45"), ("UTC", "UTC")])
def test_times_are_those_of_the_browser_with_their_zone(
    opened: Open, shown: Shown, zone: str, name: str
) -> None:
    page = opened(timezone_id=zone).goto("/topics/orders/0/3")
    shown_time = page.locator("dl.pairs time").first
    expect(shown_time).to_contain_text(name)
    page.keyboard.press("u")
    expect(shown_time).to_contain_text("UTC")
    expect(shown_time).not_to_contain_text("+5:45")


def test_the_night_of_a_change_of_clocks_has_both_offsets(opened: Open) -> None:
    page = opened(timezone_id="Europe/Berlin").goto("/help")
    zones = "[m.zoneName(1761438600000), m.zoneName(1761442200000)]"
    found = page.evaluate(f"import({MODULE}).then(m => {zones})".replace("NAME", "times.js"))
    assert found == ["UTC+2", "UTC+1"]


def test_eight_tabs_stay_open_and_the_ninth_loads(opened: Open) -> None:
    tab = opened()
    for _ in range(8):
        page = tab.new_page()
        page.goto(f"{tab.base}/")
    began = time.monotonic()
    tab.goto("/topics/orders")
    assert time.monotonic() - began < 10.0


def test_nothing_that_somebody_sent_runs(opened: Open, shown: Shown) -> None:
    tab = opened()
    for path in (place(shown.client, "bodies", "nasty"), "/topics/nasty", "/topics/nasty/0/0",
                 "/topics/bodies", "/find?q=%3Cimg%20src=x%20onerror=alert(1)%3E",
                 "/topics?q=%3Cscript%3Ealert(1)%3C/script%3E",
                 "/topics/orders?at=%3Cscript%3Ealert(1)%3C/script%3E",
                 "/topics/orders?tag=%22onfocus=alert(1)"):  # fmt: skip
        page = tab.goto(path)
        assert page.locator("main script, main img, main iframe").count() == 0


def test_no_other_page_frames_it_or_posts_to_it(browser: Browser) -> None:
    with served(KnownNode()) as site:
        context = browser.new_context()
        page = context.new_page()
        own = f"http://127.0.0.1:{site.port}"
        page.route("http://localhost:1/*", lambda route: route.fulfill(
            content_type="text/html",
            body=f'<iframe src="{own}/help"></iframe><form method="post" action="{own}/unlock">'
                 f'<input name="key" value="{KEY}"><button>x</button></form>',
        ))  # fmt: skip
        page.goto("http://localhost:1/")
        page.wait_for_timeout(500)
        assert all("Keys and words" not in (frame.content()) for frame in page.frames[1:])
        page.get_by_role("button").click()
        page.wait_for_load_state()
        assert "did not come from a page of the console" in page.content()
        assert context.cookies() == []
        context.close()


def test_a_key_behind_the_address_unlocks_and_leaves_it(browser: Browser) -> None:
    with served(KnownNode()) as site:
        tab = Tab(browser, f"http://127.0.0.1:{site.port}")
        page = tab.goto(f"/unlock#{KEY}")
        page.wait_for_url("**/")
        expect(page.get_by_role("button", name="lock")).to_be_visible()
        assert KEY not in page.content()
        page.get_by_role("button", name="lock").click()
        expect(page.get_by_role("link", name="unlock")).to_be_visible()
        tab.close()


def test_the_first_page_is_light_and_soon_there(opened: Open) -> None:
    tab = opened()
    sizes: list[int] = []
    tab.page.on("requestfinished", lambda one: sizes.append(one.sizes()["responseBodySize"]))
    page = tab.goto("/topics/orders")
    page.wait_for_timeout(300)
    paint = page.evaluate("performance.getEntriesByName('first-paint')[0].startTime")
    assert paint < 3_000
    wait_until(lambda: len(sizes) >= 6, "not all files were loaded", 5.0)
    assert sum(sizes) < 40_000
