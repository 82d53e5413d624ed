"""Look and navigation of the console in a browser. See soak.toml.

Needs Debian's chromium and playwright. Screenshots are written to .work/console.
"""

from __future__ import annotations

import json
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
from .long_console_pages import PICTURES, Shown

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
        ("broker", "2", "error", "#/cluster"),
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
    page.screenshot(path=PICTURES / f"problems-{page.viewport_size['width']}.png")  # type: ignore[index]


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
    page.screenshot(path=PICTURES / f"charts-{page.viewport_size['width']}.png")  # type: ignore[index]
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
