"""Look and navigation of the console in a browser. See soak.toml.

Needs Debian's chromium and playwright. Screenshots are written to .work/console.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import trio
from playwright.sync_api import Browser, Page, Route, expect

from kbroker.client.cluster import open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.client.groups import commit_offsets
from kbroker.client.producer import Producer
from kbroker.client.topics import NewTopic, create_topics
from kbroker.protocol.records import Record

from ..cli.test_serve import serving, wait_for
from .browser import chromium
from .long_console_pages import AXE, PICTURES, SERIOUS, THEMES, Shown

SIZES = {1440: 900, 390: 844}
LONG_NAME = "payments-of-the-accounting-department.with-a-long-name.0f3a9c1b-7d3e-4b1c-9a55"
STEP_SECONDS, SAMPLES = 5, 120
SAMPLED_AT_MS = 1_767_225_600_000


async def seed(address: str) -> None:
    """Create topics with records, and groups that lag."""
    async with open_cluster([Endpoint.parse(address)], "shop") as cluster:
        await create_topics(cluster, [NewTopic("orders", 6), NewTopic(LONG_NAME, 1)])
        records = [Record(b"k", b"v", 1, [], -1)] * 20
        await Producer(cluster).write({("orders", at): records for at in range(6)})
        await commit_offsets(cluster, "billing", {("orders", at): 5 for at in range(6)})
        await commit_offsets(cluster, f"group-{LONG_NAME}", {("orders", 0): 1})


def width_of(page: Page) -> int:
    """Return the width of the window in pixels."""
    width: int = page.evaluate("innerWidth")
    return width


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    port_file = tmp_path_factory.mktemp("console") / "ready.json"
    flags = ("--memory", "--port", "0", "--http-port", "0", "--port-file", str(port_file))
    with serving(*flags):
        ready: dict[str, Any] = json.loads(wait_for(port_file))
        trio.run(seed, ready["bootstrap_servers"])
        yield ready


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(params=SIZES)
def shown(browser: Browser, server: dict[str, Any], request: Any) -> Iterator[Shown]:
    size: Any = {"width": request.param, "height": SIZES[request.param]}
    with browser.new_context(viewport=size, has_touch=request.param < 600) as context:
        PICTURES.mkdir(parents=True, exist_ok=True)
        page = Shown(context.new_page(), server["http"])
        yield page
        assert page.errors == []
        assert page.page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def respond_with(page: Page, path: str, changes: dict[str, Any]) -> None:
    """Change fields of the API's responses."""

    def respond(route: Route) -> None:
        route.fulfill(json=route.fetch().json() | changes)

    page.route(path, respond)


def show_trends(shown: Shown) -> Page:
    """Open the overview with known trends."""
    rising = list(range(SAMPLES))
    changes = {
        "sampled_at_ms": SAMPLED_AT_MS,
        "records_per_second": [each * 100 for each in rising],
        "bytes_in_per_second": [None] * 60 + [each * 1000 for each in rising[60:]],
        "bytes_out_per_second": [each * 2500 for each in rising],
        "requests_per_second": [each % 7 for each in rising],
        "produce_us": {"p50": [900] * SAMPLES, "p99": [each * 300 for each in rising]},
        "request_us": {"p50": [50] * SAMPLES, "p99": [2_500_000] * SAMPLES},
        "lag": [each * 10 for each in rising],
        "group_lags": [{"group": "billing", "lag": 5, "trend": [5] * SAMPLES}],
    }
    respond_with(shown.page, "**/overview", changes)
    return shown.go("#/")


def test_overview_is_fine_without_problems(shown: Shown) -> None:
    page = shown.go("#/")
    expect(page.locator(".health")).to_have_text("✓ Everything is fine")
    expect(page.locator("main .cards .good")).to_have_text("running")
    top = page.get_by_role("heading", name="Last ten minutes").bounding_box()
    below = page.get_by_role("heading", name="Connect a client").bounding_box()
    assert top
    assert below
    assert top["y"] < below["y"]


def test_problems_come_first_and_link_to_their_pages(shown: Shown) -> None:
    rows = [
        ("broker", "2", "error", "#/brokers/2"),
        ("partition", "a-b-3", "error", "#/topics/a-b/partitions"),
        ("directory", "1:/data", "warning", "#/storage"),
        ("transaction", "orders-0", "warning", "#/storage?search=orders"),
        ("group", "billing", "warning", "#/groups/billing"),
    ]
    problems = [
        {
            "what": what,
            "where": where,
            "problem": "broken",
            "action": "repair",
            "severity": severity,
        }
        for what, where, severity, _ in rows
    ]
    changes = {"problems": problems, "silent_nodes": [2], "other_nodes": [4, 5]}
    respond_with(shown.page, "**/overview", changes)
    page = shown.go("#/")
    expect(page.locator(".problems li")).to_have_count(len(rows))
    for at, (_, where, _, target) in enumerate(rows):
        link = page.locator(".problems li").nth(at).get_by_role("link", name=where)
        expect(link).to_have_attribute("href", target)
    expect(page.locator(".problems li").first).to_contain_text("Suggested fix: repair")
    expect(page.locator(".health")).to_contain_text("No response from node 2.")
    expect(page.locator(".health")).to_contain_text("nodes 4, 5 are only available in")
    page.screenshot(path=PICTURES / f"problems-{width_of(page)}.png")


def test_partitions_with_one_cause_are_one_problem_with_a_list(shown: Shown) -> None:
    problem = {
        "what": "partition",
        "where": "orders-0",
        "problem": "under-replicated: broker 2 is down",
        "action": "start it",
        "severity": "error",
        "count": 3,
        "places": ["orders-0", "orders-1"],
    }
    respond_with(shown.page, "**/overview", {"problems": [problem]})
    page = shown.go("#/")
    row = page.locator(".problems li")
    expect(row).to_contain_text("3 partitions under-replicated: broker 2 is down")
    expect(row.get_by_role("link", name="orders-1")).to_be_hidden()
    row.get_by_text("Partitions", exact=True).click()
    expect(row.get_by_role("link", name="orders-1")).to_be_visible()
    expect(row).to_contain_text("and 1 more")


def test_node_that_is_down_is_listed_with_the_others(shown: Shown) -> None:
    respond_with(shown.page, "**/cluster", {"brokers_down": [{"broker": 2, "replicas": 5}]})
    page = shown.go("#/cluster")
    expect(page.locator(".card").first).to_have_text("Nodes1 up, 1 down")
    row = page.get_by_role("region", name="Nodes", exact=True).locator("tbody tr").nth(1)
    expect(row.locator(".bad")).to_have_text("down: not registered")
    expect(row.get_by_role("link", name="2")).to_have_attribute("href", "#/brokers/2")


def test_charts_have_axes_legends_and_values_at_the_pointer(shown: Shown) -> None:
    page = show_trends(shown)
    charts = page.locator("figure.chart")
    expect(charts).to_have_count(6)
    traffic, produce = charts.nth(1), charts.nth(3)
    expect(traffic.locator("svg > text").first).to_have_text("0 B")
    expect(traffic.locator("svg > text").filter(has_text="400 kB")).to_have_count(1)
    expect(traffic.locator("svg > text").filter(has_text="23:55")).to_have_count(1)
    expect(traffic.locator(".legend")).to_have_text("in119 kBout298 kBnow")
    expect(produce.locator(".legend")).to_contain_text("p99 35.7 ms".replace(" ", "", 1))
    expect(charts.nth(5).locator(".legend")).to_contain_text("billing5")
    box = traffic.locator("> svg").bounding_box()
    assert box
    page.mouse.move(box["x"] + 50 + (box["width"] - 58) / 2, box["y"] + 40)
    expect(traffic.locator(".legend")).to_contain_text("23:55:")
    expect(produce.locator("svg .cursor")).to_have_count(1)
    page.screenshot(path=PICTURES / f"charts-{width_of(page)}.png")
    page.mouse.move(1, 1)
    expect(traffic.locator(".legend")).to_contain_text("now")


def test_charts_zoom_together_by_drag_and_double_click_resets(shown: Shown) -> None:
    page = show_trends(shown)
    chart, other = page.locator("figure.chart > svg").first, page.locator("figure.chart").nth(4)
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.8, box["y"] + 50)
    expect(chart.locator(".chosen")).to_have_count(1)
    page.mouse.up()
    reset = page.get_by_role("button", name="Reset zoom")
    expect(reset).to_be_visible()
    assert other.locator("svg > text").filter(has_text="23:50").count() == 0
    chart.dblclick()
    expect(reset).to_be_hidden()
    expect(other.locator("svg > text").filter(has_text="23:55")).to_have_count(1)


def test_charts_zoom_and_show_values_with_the_keyboard(shown: Shown) -> None:
    page = show_trends(shown)
    chart = page.locator("figure.chart > svg").first
    chart.focus()
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("ArrowLeft")
    expect(page.locator("section [role=status]")).to_have_text("Records in / s, 23:59:50: in 11.7K")
    page.keyboard.press("+")
    page.keyboard.press("+")
    reset = page.get_by_role("button", name="Reset zoom")
    expect(reset).to_be_visible()
    page.keyboard.press("-")
    page.keyboard.press("0")
    expect(reset).to_be_hidden()
    for _ in range(9):
        page.keyboard.press("+")
    expect(reset).to_be_visible()
    reset.click()
    expect(reset).to_be_hidden()


def test_refreshed_overview_keeps_the_focus(shown: Shown) -> None:
    page = shown.go("#/")
    button = page.get_by_role("button", name="Copy for Java")
    button.focus()
    with page.expect_response("**/overview"):
        page.wait_for_timeout(1)
    expect(button).to_be_focused()


# -- states


def test_broker_that_does_not_answer_is_reported_and_pages_recover(
    browser: Browser, server: dict[str, Any]
) -> None:
    with browser.new_context() as context:
        shown = Shown(context.new_page(), server["http"])
        page, banner = shown.go("#/cluster"), shown.page.locator("#unreachable")
        context.set_offline(True)
        page.evaluate("location.hash = '#/groups'")
        heading = page.locator("main h1")
        expect(heading).to_have_text("Groups")
        expect(page.locator("main")).to_contain_text("This page opens as soon as it answers.")
        expect(banner).to_have_text(
            re.compile(r"does not answer\. Last update \d\d:\d\d:\d\d UTC\. Retrying")
        )
        page.screenshot(path=PICTURES / "unreachable.png")
        context.set_offline(False)
        expect(page.get_by_role("link", name="billing")).to_be_visible(timeout=15_000)
        expect(banner).to_be_hidden()


def test_write_after_restart_of_broker_uses_the_new_token(shown: Shown) -> None:
    page = shown.go("#/topics/orders/produce")
    answers: list[int] = []

    def respond(route: Route) -> None:
        answers.append(route.fetch().status)
        route.fulfill(status=503 if len(answers) == 1 else 200, json={"groups": [], "may": []})

    page.route("**/api/v1/groups", respond)
    session = {"token": "renewed", "user": "x", "node_id": 1, "may_write": True}
    page.route("**/api/v1/session", lambda route: route.fulfill(json=session))
    page.evaluate("location.hash = '#/groups'")
    expect(page.locator("#unreachable")).to_be_visible()
    expect(page.locator("main tbody")).to_be_visible(timeout=15_000)
    token = page.evaluate("import('./api.js').then((each) => each.session.token)")
    assert token == "renewed"
    shown.errors.clear()  # the browser logs the response with status 503


def test_slow_page_shows_that_it_is_loading(shown: Shown) -> None:
    page = shown.go("#/")
    held: list[Route] = []
    page.route("**/api/v1/cluster", lambda route: held.append(route))
    with page.expect_request("**/api/v1/cluster"):
        page.evaluate("location.hash = '#/cluster'")
    expect(page.locator("main")).to_have_text("Loading …")
    held[0].continue_()
    expect(page.locator("main h1")).to_have_text("Cluster")


def test_loading_page_is_not_announced_after_it_is_complete(shown: Shown) -> None:
    page = shown.go("#/")
    page.evaluate("""() => {
      const [begin, end] = [setTimeout, clearTimeout];
      window.pending = 0;
      window.setTimeout = (act, ms) => (ms === 200 ? ++window.pending : begin(act, ms));
      window.clearTimeout = (id) => (id === window.pending ? window.pending-- : end(id));
    }""")
    page.evaluate("location.hash = '#/cluster'")
    expect(page.locator("main h1")).to_have_text("Cluster")
    assert page.evaluate("window.pending") == 0


def test_failed_page_can_be_tried_again(shown: Shown) -> None:
    page = shown.go("#/")
    page.evaluate("location.hash = '#/topics/absent/partitions'")
    expect(page.locator("main h1")).to_have_text("absent")
    expect(page.locator("main .tabs a")).to_contain_text(
        ["Messages", "Partitions", "Groups", "Config"]
    )
    page.get_by_role("button", name="Try again").click()
    expect(page.locator("main .failed")).to_contain_text("absent")
    shown.errors.clear()  # the browser logs the responses with status 404


def test_lag_without_some_partitions_is_next_to_group_on_phones(shown: Shown) -> None:
    group = {
        "group": "billing",
        "state": "Empty",
        "type": "classic",
        "coordinator": 1,
        "members": 0,
    }
    row = group | {"lag": 120, "without_offset": 60, "trend": None, "may": []}
    respond_with(shown.page, "**/api/v1/groups*", {"groups": [row], "may": []})
    page = shown.go("#/groups")
    expect(page.locator("main .lacking")).to_have_text("60 partitions without offsets")
    place = page.get_by_role("columnheader", name="Lag").bounding_box()
    assert place is not None
    assert place["x"] + place["width"] <= width_of(page)


def test_errors_of_the_protocol_are_not_painted_as_problems(shown: Shown) -> None:
    client: dict[str, Any] = {
        "node": 1,
        "client_id": "shop",
        "software": "x/1",
        "principal": "User:a",
        "host": "h",
        "requests": 9,
        "errors": 3,
        "problems": 0,
        "disconnects": {"closed by client": 2},
        "last_at_ms": SAMPLED_AT_MS,
        "apis": [
            {
                "api": "Metadata",
                "requests": 5,
                "errors": {"UNKNOWN_TOPIC_OR_PARTITION": 3},
                "problems": [],
            },
        ],
    }
    produce = {
        "api": "Produce",
        "requests": 4,
        "errors": {"NOT_ENOUGH_REPLICAS": 1},
        "problems": ["NOT_ENOUGH_REPLICAS"],
    }
    bad = client | {"client_id": "bad", "problems": 1, "apis": [*client["apis"], produce]}
    respond_with(shown.page, "**/api/v1/activity*", {"clients": [client, bad]})
    page = shown.go("#/activity")
    rows = page.locator("tr.pick")
    expect(rows.filter(has_text="shop").locator(".bad")).to_have_count(0)
    expect(rows.filter(has_text="bad").locator(".bad")).to_have_text("NOT_ENOUGH_REPLICAS 1")
    rows.filter(has_text="bad").locator("td").nth(1).click()
    apis = page.get_by_role("region", name="APIs")
    expect(apis.locator(".bad")).to_have_text("NOT_ENOUGH_REPLICAS 1")
    expect(apis).to_contain_text("UNKNOWN_TOPIC_OR_PARTITION 3")


def test_client_of_several_nodes_is_one_row_with_sums(shown: Shown) -> None:
    def at(node: int, requests: int) -> dict[str, Any]:
        api = {"api": "Fetch", "requests": requests, "errors": {"NOT_LEADER": 1}, "problems": []}
        return {
            "node": node,
            "client_id": "shop" if requests > 1 else "small",
            "software": "x/1",
            "principal": "User:a",
            "host": "h",
            "requests": requests,
            "errors": 1,
            "problems": 0,
            "disconnects": {"closed by client": 1},
            "last_at_ms": SAMPLED_AT_MS,
            "apis": [api],
        }

    rows = [at(1, 1), at(2, 70), at(1, 30)]
    respond_with(shown.page, "**/api/v1/activity*", {"clients": rows})
    page = shown.go("#/activity")
    found = page.locator("tr.pick")
    expect(found).to_have_count(2)
    expect(found.first).to_contain_text("shop100")
    expect(found.first).to_contain_text("NOT_LEADER 2")
    expect(found.first.locator("td").last).to_have_text("1, 2")


def test_explanation_of_client_lists_its_errors_by_api(shown: Shown) -> None:
    page = shown.go("#/explain/client/shop")
    apis = page.get_by_role("region", name="APIs")
    expect(apis.locator("tbody tr").filter(has_text="Produce")).to_have_count(1)


def test_empty_table_explains_how_to_get_rows(shown: Shown) -> None:
    page = shown.go("#/groups?search=absent")
    empty = page.locator("td.empty span")
    expect(empty).to_have_text("No group has a name with this text.")
    box, width = empty.bounding_box(), page.viewport_size
    assert box
    assert width
    assert box["x"] + box["width"] <= width["width"]
    respond_with(shown.page, "**/api/v1/activity*", {"clients": [], "events": []})
    page = shown.go("#/activity")
    expect(page.locator("td.empty")).to_contain_text("Clients appear here after their first")
    expect(page.get_by_role("region", name="Event log")).to_contain_text("No events yet")


# -- tables


def test_columns_are_as_wide_as_their_contents_and_long_names_are_whole(shown: Shown) -> None:
    page = shown.go("#/topics")
    link = page.get_by_role("link", name=LONG_NAME, exact=True)
    expect(link).to_be_visible()
    cut = "each => each.closest('td').scrollWidth > each.closest('td').clientWidth"
    assert not link.evaluate(cut)
    head = page.locator("th.num").first
    right = "each => getComputedStyle(each).textAlign"
    assert head.evaluate(right) == "right"
    assert head.evaluate("each => getComputedStyle(each).position") == "sticky"
    page.screenshot(path=PICTURES / f"topics-{width_of(page)}.png")
    page = shown.go("#/cluster")
    table = page.get_by_role("region", name="Nodes", exact=True)
    sizes = table.evaluate("each => [each.clientWidth, each.firstChild.clientWidth]")
    assert sizes[0] - sizes[1] <= 2 or sizes[0] < 390


def test_tables_are_sorted_by_their_columns(shown: Shown) -> None:
    page = shown.go("#/topics")
    names = page.locator("tbody tr td:nth-child(2)")
    page.get_by_role("button", name="Records", exact=True).click()
    expect(names).to_have_text([LONG_NAME, "orders"])
    page.get_by_role("button", name="Records", exact=True).click()
    expect(names).to_have_text(["orders", LONG_NAME])


def test_names_in_tables_link_to_their_pages(shown: Shown) -> None:
    page = shown.go("#/topics/orders/groups")
    expect(page.get_by_role("link", name="billing")).to_have_attribute("href", "#/groups/billing")
    page = shown.go("#/topics/orders/partitions")
    leader = page.locator("tbody tr").first.locator("td").nth(1).get_by_role("link")
    expect(leader).to_have_attribute("href", "#/brokers/1")
    page = shown.go("#/storage")
    disks = page.get_by_role("region", name="Disks")
    expect(disks).to_contain_text("writable")
    expect(disks.get_by_role("link", name="1")).to_have_attribute("href", "#/brokers/1")
    page = shown.go("#/activity")
    client = page.locator("tr.pick").filter(has_text="shop").get_by_role("link")
    expect(client.first).to_have_attribute("href", "#/explain/client/shop")
    expect(client.nth(1)).to_have_attribute("href", "#/security/acls?principal=User%3AANONYMOUS")


def test_first_column_stays_visible_on_a_phone(browser: Browser, server: dict[str, Any]) -> None:
    with browser.new_context(viewport={"width": 390, "height": 844}) as context:
        page = Shown(context.new_page(), server["http"]).go("#/groups/billing")
        table = page.get_by_role("region", name="Partitions")
        first = table.locator("tbody td").first
        before = first.bounding_box()
        assert before
        assert before["width"] > 60
        table.evaluate("each => { each.scrollLeft = 300; }")
        page.wait_for_timeout(100)
        assert first.bounding_box() == before


@pytest.mark.parametrize(
    ("path", "headings"),
    [
        ("#/groups", ["Lag"]),
        ("#/groups/billing", ["Lag"]),
        ("#/topics", ["Size", "Lag"]),
        ("#/activity", ["Requests", "Errors"]),
    ],
)
def test_main_columns_of_a_table_are_visible_on_a_phone(
    browser: Browser, server: dict[str, Any], path: str, headings: list[str]
) -> None:
    with browser.new_context(viewport={"width": 390, "height": 844}) as context:
        page = Shown(context.new_page(), server["http"]).go(path)
        for heading in headings:
            button = page.locator("main").get_by_role("button", name=heading, exact=True)
            box = button.bounding_box()
            assert box
            assert box["x"] + box["width"] <= 390


def test_search_form_is_closed_on_a_phone_if_a_search_is_shown(
    browser: Browser, server: dict[str, Any]
) -> None:
    with browser.new_context(viewport={"width": 390, "height": 844}) as context:
        shown = Shown(context.new_page(), server["http"])
        page = shown.go("#/topics/orders/messages")
        expect(page.get_by_label("Where")).to_be_visible()
        page = shown.go("#/topics/orders/messages?from=oldest")
        expect(page.get_by_label("Where")).to_be_hidden()
        page.get_by_text("Filter", exact=True).click()
        expect(page.get_by_label("Where")).to_be_visible()


def test_navigation_is_a_menu_on_a_phone_and_targets_can_be_touched(
    browser: Browser, server: dict[str, Any]
) -> None:
    with browser.new_context(viewport={"width": 390, "height": 844}, has_touch=True) as context:
        page = Shown(context.new_page(), server["http"]).go("#/")
        pages, menu = page.get_by_role("navigation", name="Pages"), page.locator("#menu")
        expect(pages).to_be_hidden()
        menu.tap()
        expect(menu).to_have_attribute("aria-expanded", "true")
        expect(page.locator("#who")).to_contain_text("node 1")
        page.screenshot(path=PICTURES / "menu-390.png")
        small = """() => [...document.querySelectorAll("header a, header button, main button")]
          .filter((each) => each.offsetParent && each.getBoundingClientRect().height < 40
            && !each.matches(".brand, .inline"))
          .map((each) => each.textContent)"""
        assert page.evaluate(small) == []
        pages.get_by_role("link", name="Topics").tap()
        expect(page.locator("main h1")).to_have_text("Topics")
        expect(pages).to_be_hidden()


# -- navigation


def test_breadcrumbs_lead_to_the_pages_above(shown: Shown) -> None:
    page = shown.go("#/topics/orders/partitions")
    crumbs = page.get_by_role("navigation", name="Breadcrumbs")
    expect(crumbs).to_have_text("Topicsorderspartitions")
    expect(crumbs.get_by_role("link", name="orders")).to_have_attribute("href", "#/topics/orders")
    page = shown.go("#/brokers/1")
    expect(crumbs).to_have_text("ClusterNode 1")
    expect(page.locator("#nav [aria-current]")).to_have_attribute("href", "#/cluster")
    page = shown.go("#/explain/partition/orders/0")
    expect(crumbs).to_have_text("Topicsorders0Explanation")
    page = shown.go("#/explain/group/billing")
    crumbs.get_by_role("link", name="billing").click()
    expect(page.locator("main h1")).to_have_text("billing")
    crumbs.get_by_role("link", name="Groups").click()
    expect(page.locator("main h1")).to_have_text("Groups")


def test_palette_finds_pages_topics_and_groups_with_the_keyboard(shown: Shown) -> None:
    page = shown.go("#/")
    page.keyboard.press("/")
    palette = page.get_by_role("dialog", name="Find")
    rows = palette.get_by_role("option")
    expect(rows.first).to_have_text("PageOverview")
    page.keyboard.type("bill")
    expect(rows).to_have_text(["Groupbilling"])
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_have_text("billing")
    expect(palette).to_have_count(0)
    page.keyboard.press("Control+k")
    expect(rows.first).to_be_visible()
    page.keyboard.type("PAYMENTS")
    expect(rows).to_have_count(2)
    page.screenshot(path=PICTURES / f"palette-{width_of(page)}.png")
    expect(rows.first).to_have_attribute("aria-selected", "true")
    page.keyboard.press("ArrowDown")
    expect(rows.nth(1)).to_have_attribute("aria-selected", "true")
    active = page.locator("input[name=palette]").get_attribute("aria-activedescendant")
    assert active == rows.nth(1).get_attribute("id")
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_have_text(LONG_NAME)
    page.locator("#find").click()
    expect(rows.first).to_be_visible()
    page.keyboard.type("nothing has this name")
    expect(palette).to_contain_text("Nothing found.")
    page.keyboard.press("Escape")
    expect(palette).to_have_count(0)


def test_palette_creates_a_topic(shown: Shown) -> None:
    page = shown.go("#/cluster")
    page.keyboard.press("/")
    rows = page.get_by_role("dialog", name="Find").get_by_role("option")
    expect(rows.first).to_be_visible()
    page.keyboard.type("new")
    expect(rows).to_have_text(["ActionCreate topic", "ActionCreate group"])
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Create topic")
    expect(dialog.get_by_role("button", name="Cancel")).to_be_visible()
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)


def test_keys_open_pages_and_are_listed(shown: Shown) -> None:
    page = shown.go("#/")
    page.keyboard.press("?")
    listed = page.get_by_role("dialog", name="Keyboard shortcuts")
    expect(listed).to_contain_text("g s")
    page.keyboard.press("Escape")
    for letter, heading in (("t", "Topics"), ("g", "Groups"), ("c", "Cluster"), ("o", "Overview")):
        page.keyboard.press("g")
        page.keyboard.press(letter)
        expect(page.locator("main h1")).to_have_text(heading)
    shown.go("#/topics")
    page.keyboard.press("f")
    page.keyboard.type("g t?")
    assert page.locator("input[name=search]").input_value() == "g t?"


def test_skip_link_moves_the_focus_to_the_content(shown: Shown) -> None:
    page = shown.go("#/topics")
    page.locator(".skip").focus()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    expect(page.locator("main h1")).to_have_text("Topics")


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", SIZES)
def test_axe_finds_no_serious_violation_in_charts_palette_menu(
    browser: Browser, server: dict[str, Any], theme: Any, width: int
) -> None:
    size: Any = {"width": width, "height": SIZES[width]}
    with browser.new_context(bypass_csp=True, color_scheme=theme, viewport=size) as context:
        page = show_trends(Shown(context.new_page(), server["http"]))
        page.evaluate(AXE.read_text())

        def violations() -> list[str]:
            broken = page.evaluate("axe.run().then((it) => it.violations)")
            return [each["id"] for each in broken if each["impact"] in SERIOUS]

        assert violations() == []
        if width < 600:
            page.locator("#menu").click()
            assert violations() == []
        page.locator("#find").click()
        expect(page.get_by_role("option").first).to_be_visible()
        assert violations() == []
        page.keyboard.press("Escape")
        page.keyboard.press("?")
        expect(page.get_by_role("dialog", name="Keyboard shortcuts")).to_be_visible()
        assert violations() == []
