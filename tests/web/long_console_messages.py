"""Messages and Produce tabs of the console in a browser, wide and narrow, light and dark. See soak.toml.

Needs Debian's chromium, playwright, and axe-core below .work/axe. Screenshots are written to
.work/console.
"""

from __future__ import annotations

import json
import re
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import trio
from playwright.sync_api import Browser, Locator, Page, Route, expect

from kbroker.client.cluster import open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.client.groups import commit_offsets
from kbroker.client.producer import Producer
from kbroker.client.topics import NewTopic, create_topics
from kbroker.protocol.records import Record

from ..cli.test_serve import serving, wait_for
from .browser import chromium
from .long_console_pages import AXE, EVIL, PICTURES, SERIOUS, THEMES, Shown

WIDTHS = {1440: 900, 390: 844}
# Records of the topic `many`, more than a table renders at once.
MANY, PARTITIONS = 1_400, 4
# 2026-01-01 00:00 UTC, the time of the first record.
BEGIN_MS = 1_767_225_600_000
MINUTE_MS = 60_000
SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "country", "type": "string"},
        {"name": "number", "type": "long"},
        {"name": "note", "type": ["null", "string"], "default": None},
    ],
}


def register(url: str) -> None:
    body = json.dumps({"schema": json.dumps(SCHEMA)}).encode()
    urllib.request.urlopen(f"{url}/subjects/typed-value/versions", body).close()


def order(n: int) -> Record:
    value = {"order": n, "country": ["DE", "FR", "IT"][n % 3], "user": {"age": n % 50}}
    data = json.dumps(value).encode()
    return Record(b"c%d" % (n % 37), data, BEGIN_MS + n * MINUTE_MS, [("trace", b"t%d" % n)], -1)


async def seed(address: str) -> None:
    async with open_cluster([Endpoint.parse(address)], "shop") as cluster:
        topics = [NewTopic("many", PARTITIONS), NewTopic("typed", 1), NewTopic("long", 1)]
        topics += [NewTopic("tail", 3), NewTopic("written", 3)]
        await create_topics(cluster, topics)
        records: dict[tuple[str, int], list[Record]] = {("many", n): [] for n in range(PARTITIONS)}
        for n in range(MANY):
            records["many", n % PARTITIONS].append(order(n))
        long = json.dumps({"text": "y" * 20_000, "country": "AT"}).encode()
        records["long", 0] = [
            Record(EVIL.encode(), long, BEGIN_MS, [(EVIL, EVIL.encode())], -1),
            Record(b"k", None, BEGIN_MS, [], -1),
        ]
        records["typed", 0] = [Record(b"a", b"\0\0\0\0\1\x04DE\x08\0", BEGIN_MS, [], -1)]
        await Producer(cluster).write(records)
        await commit_offsets(cluster, "billing", {("many", 3): 60})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    port_file = tmp_path_factory.mktemp("console") / "ready.json"
    ports = ("--port", "--http-port", "--registry-port")
    flags = ["--memory", *(each for name in ports for each in (name, "0"))]
    with serving(*flags, "--port-file", str(port_file)):
        ready: dict[str, Any] = json.loads(wait_for(port_file))
        register(ready["schema_registry"])
        trio.run(seed, ready["bootstrap_servers"])
        yield ready


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture
def shown(browser: Browser, server: dict[str, Any], request: Any) -> Iterator[Shown]:
    """A page in a wide window, or in one of the width that a test gives."""
    width = getattr(request, "param", 1440)
    with browser.new_context(
        viewport={"width": width, "height": WIDTHS[width]},
        timezone_id="Asia/Tokyo",
        permissions=["clipboard-read", "clipboard-write"],
        accept_downloads=True,
    ) as context:
        page = Shown(context.new_page(), server["http"])
        yield page
        assert page.errors == []
        assert page.foreign_requests == []


both_widths = pytest.mark.parametrize("shown", [*WIDTHS], indirect=True)


def status(page: Page) -> Any:
    return page.locator("main [role=status]")


def wait_for_rows(page: Page) -> None:
    expect(page.locator("tbody tr.pick").first).to_be_visible()
    expect(page.get_by_role("button", name="Cancel")).to_be_hidden()


def column(page: Page, number: int) -> list[str]:
    found: list[str] = page.locator(f"main tbody tr.pick td:nth-child({number})").all_inner_texts()
    return found


def copied(page: Page) -> str:
    return str(page.evaluate("navigator.clipboard.readText()"))


PAGES = {
    "search": "#/topics/many/messages?from=oldest&columns=time,offset,key,value.country,value.user.age",
    "record": "#/topics/many/messages?record=0-3",
    "long-record": "#/topics/long/messages?record=0-0",
    "typed-record": "#/topics/typed/messages?record=0-0",
    "wrong-expression": "#/topics/many/messages?where=value.n%20%3E%3E%203",
    "live": "#/topics/many/messages?from=live",
    "offsets": "#/topics/__consumer_offsets/messages",
    "produce": "#/topics/written/produce",
}


@pytest.mark.parametrize("theme", THEMES)
@both_widths
def test_pages_fit_in_window(shown: Shown, theme: Any) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    shown.page.emulate_media(color_scheme=theme)
    for name, fragment in PAGES.items():
        page = shown.go(fragment)
        page.wait_for_load_state("networkidle") if name != "live" else None
        width = page.evaluate("innerWidth")
        page.screenshot(path=PICTURES / f"messages-{name}-{theme}-{width}.png")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
        wide = "[...document.querySelectorAll('dialog[open]')].some((it) => it.scrollWidth > it.clientWidth)"
        assert not page.evaluate(wide), name
        if name == "wrong-expression":
            shown.errors.clear()  # the response with status 400


@pytest.mark.parametrize("theme", THEMES)
def test_axe_finds_no_serious_violation(
    browser: Browser, server: dict[str, Any], theme: Any
) -> None:
    with browser.new_context(bypass_csp=True, color_scheme=theme) as context:
        shown_page = Shown(context.new_page(), server["http"])
        found = []
        for name, fragment in PAGES.items():
            page = shown_page.go(fragment)
            if "record" in name:
                page.wait_for_selector("#detail[open] dl")
            page.evaluate(AXE.read_text())
            broken = page.evaluate("axe.run().then((it) => it.violations)")
            found += [(name, each["id"]) for each in broken if each["impact"] in SERIOUS]
        page = shown_page.go(PAGES["search"])
        page.get_by_role("button", name="Columns").click()
        page.evaluate(AXE.read_text())
        broken = page.evaluate("axe.run().then((it) => it.violations)")
        found += [("columns", each["id"]) for each in broken if each["impact"] in SERIOUS]
        assert found == []


@both_widths
def test_scrolling_shows_every_row_of_long_table(shown: Shown) -> None:
    page = shown.go("#/topics/many/messages?from=oldest")
    for number in range(1, MANY // 200):
        wait_for_rows(page)
        expect(status(page)).to_contain_text(f"{200 * number:,} records found")
        page.get_by_role("button", name="Load more").click()
    expect(status(page)).to_contain_text(f"{MANY:,} records found")
    table = page.locator("main .scroll").first
    seen: set[str] = set()
    while True:
        # rows that are visible in the window of the table, and whether it has a blank part
        found = table.evaluate("""(it) => {
          const box = it.getBoundingClientRect(), head = it.querySelector("thead th").getBoundingClientRect();
          const rows = [...it.querySelectorAll("tr.pick")].map((row) => [row.getBoundingClientRect(), row]);
          const inside = rows.filter(([at]) => at.bottom > head.bottom && at.top < box.bottom);
          const first = Math.min(...inside.map(([at]) => at.top)), last = Math.max(...inside.map(([at]) => at.bottom));
          const isEnd = it.scrollTop + it.clientHeight >= it.scrollHeight - 1;
          const isFilled = first <= head.bottom + 1 && (last >= box.bottom - 20 || isEnd);

          const ids = inside.map(([, row]) => `${row.cells[1].innerText}/${row.cells[2].innerText}`);
          return { ids, isFilled, isEnd };
        }""")
        assert found["isFilled"], found
        seen.update(found["ids"])
        if found["isEnd"]:
            break
        table.evaluate("(it) => { it.scrollTop += it.clientHeight / 2; }")
        page.evaluate(
            "new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))"
        )
    assert len(seen) == MANY


@both_widths
def test_fields_become_columns_that_are_sorted_and_kept(shown: Shown) -> None:
    page = shown.go("#/topics/many/messages?from=oldest")
    wait_for_rows(page)
    page.get_by_role("button", name="Columns").click()
    dialog = page.get_by_role("dialog", name="Columns")
    for name in ("Partition", "Size", "Value"):
        dialog.get_by_label(name, exact=True).uncheck()
    dialog.get_by_label("value.country", exact=True).check()
    dialog.get_by_label("Field", exact=True).fill("value.user.age")
    dialog.get_by_role("button", name="Add field").click()
    dialog.get_by_label("Headers", exact=True).check()
    dialog.get_by_role("button", name="Move value.user.age left").click()
    dialog.get_by_role("button", name="Show columns").click()
    heads = page.locator("main thead th")
    expect(heads).to_have_text(
        ["Time (UTC)", "Offset", "Key", "value.user.age", "value.country", "Headers"]
    )
    assert column(page, 6)[0] == "trace=t0"
    page.get_by_role("button", name="value.user.age").click()
    page.get_by_role("button", name="value.user.age").click()
    expect(heads.nth(3)).to_have_attribute("aria-sort", "descending")
    ages = [int(each) for each in column(page, 4)]
    assert ages == sorted(ages, reverse=True)
    assert "sort=-value.user.age" in page.url
    address = page.url
    # the URL alone has the choice
    page.evaluate("localStorage.clear()")
    page.goto("about:blank")
    page.goto(address)
    wait_for_rows(page)
    expect(heads.nth(3)).to_have_attribute("aria-sort", "descending")
    assert column(page, 4)[0] == "49"
    # the browser keeps the choice for this topic
    page.get_by_role("button", name="Columns").click()
    dialog.get_by_label("Time (UTC)", exact=True).uncheck()
    dialog.get_by_role("button", name="Show columns").click()
    shown.go("#/topics/many/messages")
    expect(heads.first).to_have_text("Offset")
    page.get_by_role("button", name="Columns").click()
    dialog.get_by_role("button", name="Default columns").click()
    expect(heads.first).to_have_text("Time (UTC)")


def test_field_of_truncated_value_is_read_by_the_server(shown: Shown) -> None:
    page = shown.go("#/topics/long/messages?from=oldest&columns=offset,value.country,value.text")
    wait_for_rows(page)
    assert column(page, 2) == ["AT", ""]
    assert column(page, 3)[0].startswith("yyyy")
    assert page.locator("main img").count() == 0


@both_widths
def test_inspector_walks_through_loaded_and_unloaded_records(shown: Shown) -> None:
    page = shown.go("#/topics/many/messages?from=oldest")
    wait_for_rows(page)
    page.locator("tbody tr.pick").nth(199).click()
    panel = page.locator("#detail")
    expect(panel.locator("h1")).to_have_text("many, partition 3, offset 49")
    expect(panel).to_contain_text("Batch")
    page.keyboard.press("ArrowRight")  # loads more records
    expect(panel.locator("h1")).to_have_text("many, partition 0, offset 50")
    page.keyboard.press("ArrowLeft")
    expect(panel.locator("h1")).to_have_text("many, partition 3, offset 49")
    panel.get_by_role("button", name="← Previous").click()
    expect(panel.locator("h1")).to_have_text("many, partition 2, offset 49")
    expect(panel.get_by_role("button", name="← Previous")).to_be_focused()
    assert "record=2-49" in page.url
    page.keyboard.press("Escape")
    expect(panel).to_be_hidden()
    assert "record=" not in page.url


def show_filters(page: Page) -> None:
    """Show the form that a narrow window hides."""
    if page.locator("details.filters").get_attribute("open") is None:
        page.get_by_text("Filter", exact=True).click()


def show_more(panel: Locator) -> None:
    """Show the buttons that are hidden in a narrow window."""
    if panel.locator("details.more").get_attribute("open") is None:
        panel.get_by_text("Copy and resend").click()


@both_widths
def test_inspector_shows_the_value_first_in_a_narrow_window(shown: Shown) -> None:
    page = shown.go("#/topics/many/messages?record=0-1")
    panel = page.locator("#detail")
    value, facts = panel.locator("pre").last.bounding_box(), panel.locator("dl").bounding_box()
    assert value
    assert facts
    viewport = page.viewport_size
    assert viewport
    assert (value["y"] < facts["y"]) is (viewport["width"] < 600)


@both_widths
def test_link_opens_record_and_its_neighbours_in_the_partition(shown: Shown) -> None:
    page = shown.go("#/topics/many/messages?from=live&record=1-10")
    panel = page.locator("#detail")
    expect(panel.locator("h1")).to_have_text("many, partition 1, offset 10")
    page.keyboard.press("ArrowRight")
    expect(panel.locator("h1")).to_have_text("many, partition 1, offset 11")
    for _ in range(2):
        panel.get_by_role("button", name="← Previous").click()
    expect(panel.locator("h1")).to_have_text("many, partition 1, offset 9")
    show_more(panel)
    panel.get_by_role("button", name="Copy link").click()
    expect(page.locator("#notes")).to_contain_text("Copied: link")
    link = copied(page)
    assert link.endswith("#/topics/many/messages?record=1-9")
    page.goto("about:blank")
    page.goto(link)
    expect(panel.locator("h1")).to_have_text("many, partition 1, offset 9")
    shown.go("#/topics/many/messages?record=1-9999999")
    expect(page.locator("#notes")).to_contain_text("the next record will have offset 350")
    shown.errors.clear()  # the response with status 404


def test_inspector_shows_times_sizes_headers_and_copies(shown: Shown) -> None:
    page = shown.go("#/topics/many/messages?record=0-1")
    panel = page.locator("#detail")
    expect(panel.locator("dl")).to_contain_text("2026-01-01 00:04:00.000")
    expect(panel.locator("dl")).to_contain_text("2026-01-01 09:04:00.000")
    expect(panel.locator("dl")).to_contain_text("Time (Asia/Tokyo)")
    expect(panel.locator("dl")).to_contain_text("compression none")
    expect(panel.get_by_role("region", name="Headers").locator("tbody tr")).to_have_text(
        re.compile("trace.*t4")
    )
    for name, expected in (
        ("Copy value", '{"order": 4, "country": "FR", "user": {"age": 4}}'),
        ("Copy key", "c4"),
    ):
        panel.get_by_role("button", name=name).click()
        expect(page.locator("#notes .note").last).to_contain_text("Copied")
        assert copied(page) == expected
    panel.get_by_role("button", name="Copy record").click()
    expect(page.locator("#notes .note").last).to_contain_text("record")
    assert json.loads(copied(page))["headers"] == [{"key": "trace", "value": "t4"}]
    panel.get_by_role("button", name="Copy kbroker command").click()
    expect(page.locator("#notes .note").last).to_contain_text("command")
    assert copied(page).startswith("kbroker topic consume many -p 0 -o 1 -n 1 -b localhost:")


def test_long_value_is_copied_and_downloaded_completely(shown: Shown) -> None:
    page = shown.go("#/topics/long/messages?record=0-0")
    panel = page.locator("#detail")
    panel.get_by_role("button", name="Copy value").click()
    expect(page.locator("#notes")).to_contain_text("Copied: value")
    assert len(copied(page)) > 20_000
    with page.expect_download() as saved:
        panel.get_by_role("link", name="Download value").click()
    path = saved.value.path()
    assert isinstance(path, Path)
    assert json.loads(path.read_text())["country"] == "AT"
    assert page.locator("main img, dialog img").count() == 0
    page.keyboard.press("ArrowLeft")
    expect(panel).to_contain_text("null (tombstone)")


def test_schema_of_value_is_linked(shown: Shown) -> None:
    page = shown.go("#/topics/typed/messages?record=0-0")
    panel = page.locator("#detail")
    expect(panel).to_contain_text("avro of typed-value, version 1, schema 1 (AVRO)")
    expect(panel.get_by_role("link", name="typed-value")).to_have_attribute(
        "href", "#/schemas/typed-value"
    )


@both_widths
def test_times_are_entered_and_shown_in_the_chosen_zone(shown: Shown) -> None:
    page = shown.go("#/topics/many/messages")
    page.locator("select[name=from]").select_option("oldest")
    page.locator("input[name=since]").fill("2026-01-01T01:00")
    page.locator("input[name=until]").fill("2026-01-01T01:09:59")
    expect(page.locator("form.bar")).to_contain_text("Press Enter or Search to apply")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(status(page)).to_contain_text("10 records found")
    expect(page.locator("form.bar")).not_to_contain_text("Press Enter")
    assert column(page, 1)[0] == "2026-01-01 01:00:00.000"
    assert f"since={BEGIN_MS + 60 * MINUTE_MS}" in page.url
    page.locator("select[name=zone]").select_option("local")
    expect(page.locator("main thead th").first).to_have_text("Time (Asia/Tokyo)")
    assert column(page, 1)[0] == "2026-01-01 10:00:00.000"
    assert page.locator("input[name=since]").input_value().startswith("2026-01-01T10:00")
    page.reload()
    expect(status(page)).to_contain_text("10 records found")
    assert column(page, 1)[0] == "2026-01-01 10:00:00.000"
    if page.locator("select[name=range]").is_hidden():
        # Narrow windows close the form of a search that is in the URL.
        page.locator(".filters > summary").click()
    page.locator("select[name=range]").select_option("Yesterday")
    expect(status(page)).to_contain_text("complete")
    expect(page.locator("tbody tr.pick")).to_have_count(0)
    page.go_back()
    expect(status(page)).to_contain_text("10 records found")


@both_widths
def test_wrong_expression_is_marked_at_its_field(shown: Shown) -> None:
    page = shown.go("#/topics/many/messages")
    where = page.get_by_label("Where")
    where.fill("value.order > 3 and value.country = 4")
    where.press("Enter")
    problem = page.locator("#where-problem")
    expect(problem).to_contain_text("invalid syntax at '= 4' (character 35)")
    expect(problem.locator("mark")).to_have_text("= 4")
    expect(where).to_have_attribute("aria-invalid", "true")
    shown.errors.clear()  # the response with status 400
    where.fill('value.country == "DE"')
    where.press("Enter")
    expect(problem).to_be_hidden()
    expect(where).to_be_focused()
    expect(status(page)).to_contain_text("200 records found", timeout=30_000)


@both_widths
def test_wrong_expression_of_live_view_is_marked_at_its_field(shown: Shown) -> None:
    page = shown.go("#/topics/many/messages?from=live&where=value.order%20%3D%204")
    expect(page.locator("#where-problem")).to_contain_text("invalid syntax at '= 4'")
    expect(page.get_by_label("Where")).to_have_attribute("aria-invalid", "true")
    expect(status(page)).to_contain_text("invalid syntax")
    shown.errors.clear()  # the responses with status 400
    page.get_by_label("Where").fill("value.order == 4")
    page.get_by_label("Where").press("Enter")
    expect(status(page)).to_contain_text("Live: 0 of 0 records match")
    expect(page.locator("#where-problem")).to_be_hidden()


def test_outcome_of_transactions_is_chosen_except_in_the_live_view(shown: Shown) -> None:
    page = shown.go("#/topics/many/messages")
    outcome = page.get_by_role("combobox", name="Transactions")
    outcome.select_option("aborted only")
    page.get_by_role("button", name="Search").click()
    expect(status(page)).to_contain_text("0 records found")
    assert "aborted=1" in page.url
    page.locator("select[name=from]").select_option("live")
    expect(outcome).to_have_count(0)
    page.get_by_role("button", name="Search").click()
    expect(status(page)).to_contain_text("Live")
    assert "aborted" not in page.url


def test_live_view_counts_matching_records(shown: Shown) -> None:
    page = shown.go("#/topics/typed/messages?from=live&contains=needle")
    expect(status(page)).to_contain_text("Live: 0 of 0 records match")
    produce(page, "typed", {"value": "needle"}, {"value": "hay"})
    expect(status(page)).to_contain_text("Live: 1 of 2 records matches")


@both_widths
def test_long_search_shows_progress_and_is_cancelled(shown: Shown) -> None:
    page = shown.go("#/topics/many/messages?from=oldest&contains=nowhere&bytes=1")

    def slowly(route: Route) -> None:
        time.sleep(0.2)
        route.continue_()

    shown.page.route("**/messages?*", slowly)
    show_filters(page)
    page.get_by_label("Contains", exact=True).fill("nowhere!")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.get_by_role("progressbar")).to_be_visible()
    page.get_by_role("button", name="Cancel").click()
    expect(status(page)).to_contain_text("cancelled")
    expect(page.get_by_role("progressbar")).to_be_hidden()
    shown.page.unroute_all(behavior="wait")
    page.get_by_role("button", name="Continue search").click()
    expect(status(page)).to_contain_text(f"0 records found, {MANY:,} scanned", timeout=30_000)
    expect(status(page)).to_contain_text("complete")


def produce(page: Page, topic: str, *records: dict[str, Any]) -> None:
    page.evaluate(
        """async ([topic, body]) => {
          const { token } = await (await fetch("/api/v1/session")).json();
          await fetch(`/api/v1/topics/${topic}/records`, {
            method: "POST", headers: { "x-kbroker-token": token }, body });
        }""",
        [topic, "\n".join(json.dumps(each) for each in records)],
    )


@both_widths
def test_live_tail_is_in_time_order_paused_and_cleared(shown: Shown) -> None:
    page = shown.go("#/topics/tail/messages?from=live")
    expect(status(page)).to_contain_text("Live")
    first = [
        {"partition": p, "value": f"{p}-{n}", "timestamp": BEGIN_MS + 10 * n + p}
        for p in range(3)
        for n in range(5)
    ]
    produce(page, "tail", *first)
    expect(page.locator("tbody tr.pick")).to_have_count(15)
    times = column(page, 1)
    assert times == sorted(times, reverse=True)
    page.get_by_role("button", name="Pause").click()
    produce(page, "tail", {"value": "later", "timestamp": 5}, {"value": "last", "timestamp": 6})
    expect(page.get_by_role("button", name="Resume (2 waiting)")).to_be_visible()
    assert page.locator("tbody tr.pick").count() == 15
    page.wait_for_timeout(2_500)  # beyond the window in which records are sorted by time
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("tbody tr.pick")).to_have_count(17)
    page.get_by_role("button", name="Clear").click()
    expect(page.locator("tbody tr.pick")).to_have_count(0)
    # a record with an old timestamp is on top of those that arrived before
    produce(page, "tail", {"value": "new", "timestamp": BEGIN_MS})
    expect(page.locator("tbody tr.pick")).to_have_count(1)
    page.wait_for_timeout(2_500)
    produce(page, "tail", {"value": "old", "timestamp": 7})
    expect(page.locator("tbody tr.pick").first).to_contain_text("old")
    # columns are changed without losing records
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("dialog", name="Columns").get_by_label("Format", exact=True).check()
    page.get_by_role("button", name="Show columns").click()
    produce(page, "tail", {"value": '{"a": 1}', "timestamp": 8})
    expect(page.locator("tbody tr.pick")).to_have_count(3)
    expect(page.locator("tbody tr.pick").first).to_contain_text("json")
    page.get_by_role("button", name="Columns").click()
    page.get_by_role("button", name="Default columns").click()


@both_widths
def test_pause_of_live_view_is_visible_without_scrolling(shown: Shown) -> None:
    page = shown.go("#/topics/tail/messages?from=live")
    expect(status(page)).to_contain_text("Live")
    produce(page, "tail", *({"value": str(n)} for n in range(60)))
    expect(status(page)).to_contain_text("60 records")
    assert page.evaluate("scrollY") == 0
    for name in ("Pause", "Clear"):
        box = page.get_by_role("button", name=name).bounding_box()
        assert box is not None
        assert box["y"] + box["height"] <= page.evaluate("innerHeight"), name


@both_widths
def test_keys_of_internal_topic_are_shown_in_words(shown: Shown) -> None:
    page = shown.go("#/topics/__consumer_offsets/messages?columns=key,key.topic,value.partition")
    wait_for_rows(page)
    row = page.locator("tbody tr.pick").last
    assert row.locator("td").all_inner_texts() == ["group billing, many-3", "many", "3"]
    row.click()
    expect(page.locator("#detail pre").first).to_contain_text('"group": "billing"')


@both_widths
def test_record_is_written_with_headers_and_linked(shown: Shown) -> None:
    page = shown.go("#/topics/written/produce")
    page.get_by_label("Value is").select_option("json")
    value = page.get_by_label("Value", exact=True)
    value.fill('{"a": 1,\n "b": x}')
    expect(page.get_by_role("alert")).to_contain_text('unexpected "x" (line 2, column 7)')
    page.get_by_role("button", name="Produce").click()
    assert page.get_by_role("list", name="Written records").is_hidden()
    value.fill('{"a": 12345678901234567890,"b":[]}')
    page.get_by_role("button", name="Format JSON").click()
    assert value.input_value() == '{\n  "a": 12345678901234567890,\n  "b": []\n}'
    page.get_by_role("button", name="Add header").click()
    page.get_by_label("Header name").fill("trace, id")
    page.get_by_label("Header value").fill("a=b")
    page.get_by_label("Key", exact=True).fill("k1")
    page.get_by_label("Partition", exact=True).fill("1")
    page.get_by_role("button", name="Produce").click()
    page.get_by_role("list", name="Written records").get_by_role("link").click()
    panel = page.locator("#detail")
    expect(panel.locator("h1")).to_contain_text("written, partition 1")
    expect(panel.get_by_role("region", name="Headers")).to_contain_text("a=b")
    expect(panel).to_contain_text("12345678901234567890")
    show_more(panel)
    panel.get_by_role("link", name="Copy to Produce").click()
    expect(page.get_by_role("status").filter(has_text="Copied from")).to_be_visible()
    assert page.get_by_label("Header name").input_value() == "trace, id"
    assert page.get_by_label("Value is").input_value() == "json"
    page.get_by_label("Value is").select_option("null")
    page.get_by_role("button", name="Produce").click()
    page.get_by_role("list", name="Written records").get_by_role("link").click()
    expect(panel).to_contain_text("null (tombstone)")


@both_widths
def test_files_are_written_as_value_and_as_lines(shown: Shown, tmp_path: Path) -> None:
    page = shown.go("#/topics/written/produce")
    data = bytes(range(256))
    page.get_by_label("Value from a file").set_input_files(
        {"name": "all.bin", "mimeType": "", "buffer": data}
    )
    expect(page.get_by_label("Value is")).to_have_value("base64")
    page.get_by_role("button", name="Produce").click()
    page.get_by_role("list", name="Written records").get_by_role("link").click()
    expect(page.locator("#detail")).to_contain_text("Value256 bytes")
    page = shown.go("#/topics/written/produce")
    page.get_by_label("Write NDJSON lines").check()
    lines = "".join(f'{{"value": "line {n}", "partition": 2}}\n' for n in range(2_500))
    page.get_by_label("NDJSON file").set_input_files(
        {"name": "x.ndjson", "mimeType": "", "buffer": lines.encode()}
    )
    expect(page.get_by_role("status").filter(has_text="2,500 records written")).to_be_visible()
    wrong = lines + '\n{"valeu": 1}\n'
    page.get_by_label("NDJSON file").set_input_files(
        {"name": "y.ndjson", "mimeType": "", "buffer": wrong.encode()}
    )
    expect(page.get_by_role("alert")).to_contain_text(
        "2,000 records were written before. line 2502"
    )
    shown.errors.clear()  # the response with status 400
    page.get_by_label("NDJSON lines", exact=True).fill(
        '{"value": "a"}\n{"value": "b", "partition": 7}'
    )
    page.get_by_role("button", name="Produce").click()
    expect(page.get_by_role("alert")).to_contain_text("line 2: written has no partition 7")
    shown.errors.clear()  # the response with status 400
    page.get_by_label("Choose partitions by key").check()
    page.get_by_role("button", name="Produce").click()
    expect(page.get_by_role("status").filter(has_text="2 records written")).to_be_visible()


@both_widths
def test_value_is_written_by_schema(shown: Shown) -> None:
    page = shown.go("#/topics/typed/produce")
    note = page.get_by_text("The subject typed-value exists, but no schema is chosen")
    expect(note).to_be_visible()
    page.locator("select[name=Value-schema]").select_option("typed-value")
    expect(note).to_be_hidden()
    page.locator("select[name=Value-version]").select_option("1")
    page.get_by_role("button", name="Sample from schema").click()
    value = page.get_by_label("Value", exact=True)
    expect(value).to_have_value(re.compile('"country": "text"'))
    sample = json.loads(value.input_value())
    assert sample == {"country": "text", "number": 0, "note": None}
    value.fill(json.dumps(sample | {"country": 7}))
    page.get_by_role("button", name="Produce").click()
    expect(page.get_by_role("alert")).to_contain_text("value: country: 7 is not")
    shown.errors.clear()  # the response with status 400
    value.fill(json.dumps(sample | {"number": 12}))
    page.get_by_role("button", name="Produce").click()
    page.get_by_role("list", name="Written records").get_by_role("link").click()
    panel = page.locator("#detail")
    expect(panel).to_contain_text("avro of typed-value, version 1, schema 1 (AVRO)")
    expect(panel).to_contain_text('"number": 12')


def test_internal_records_are_described_in_words(shown: Shown) -> None:
    page = shown.go("#/topics/__consumer_offsets/messages")
    expect(page.locator("main tbody")).to_contain_text(
        "Group billing committed offset 60 of many-3"
    )
    shown.go("#/topics/_schemas/messages")
    expect(page.locator("main tbody")).to_contain_text("Subject typed-value, version 1")
