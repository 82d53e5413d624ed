"""Every page of the console in a browser: content, layout and accessibility. See soak.toml.

Needs Debian's chromium, playwright, and axe-core below .work/axe. Screenshots are written to
.work/console.
"""

from __future__ import annotations

import json
import socket
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import trio
from playwright.sync_api import Browser, Page, Route, expect

from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.cluster_details import ERROR, WARNING
from kbroker.client.configs import Operation, Resource, alter_configs
from kbroker.client.endpoint import Endpoint
from kbroker.client.errors import check
from kbroker.client.groups import commit_offsets
from kbroker.client.producer import Producer
from kbroker.client.share_groups import alter_share_offsets
from kbroker.client.topics import NewTopic, create_topics
from kbroker.protocol.compression import Codec
from kbroker.protocol.messages.streams_groups import (
    StreamsGroupHeartbeatRequest,
    StreamsGroupTopologyDescriptionUpdateRequest,
    TopologyDescription,
    TopologyDescriptionGlobalStore,
    TopologyDescriptionNode,
    TopologyDescriptionSubtopology,
)
from kbroker.protocol.records import Record

from ..cli.test_serve import serving, wait_for
from ..coordinator.harness import subtopology, topology
from .browser import chromium

ROOT = Path(__file__).parents[2]
AXE = ROOT / ".work/axe/node_modules/axe-core/axe.min.js"
PICTURES = ROOT / ".work/console"
SIZES = ((1280, 800), (360, 740))
THEMES = ("light", "dark")
SERIOUS = ("serious", "critical")
# Size of a value in bytes that the console does not read.
OVERSIZED = 17 * 1024 * 1024
PAINT_MS, PAGE_BYTES = 200, 200_000
EVIL = "<img src=x onerror=document.title='broken'>\x1b[31m"
PAGES = {
    "overview": "#/",
    "topics": "#/topics",
    "messages": "#/topics/orders/messages",
    "found": "#/topics/orders/messages?from=oldest&where=value.country%20%3D%3D%20%22DE%22",
    "by-schema": "#/topics/typed/messages",
    "live": "#/topics/orders/messages?from=live",
    "partitions": "#/topics/orders/partitions",
    "groups-of-topic": "#/topics/orders/groups",
    "config": "#/topics/orders/config",
    "produce": "#/topics/orders/produce",
    "groups": "#/groups",
    "group": "#/groups/billing",
    "group-settings": "#/groups/queue/settings",
    "share-group": "#/groups/queue",
    "streams-group": "#/groups/totals",
    "hostile-streams-group": "#/groups/hostile",
    "dead-letters": "#/topics/dlq.orders/messages",
    "activity": "#/activity",
    "storage": "#/storage",
    "cluster": "#/cluster",
    "node-settings": "#/brokers/1",
    "explain": "#/explain/partition/orders/0",
    "schemas": "#/schemas",
    "subject": "#/schemas/typed-value",
    "users": "#/security",
    "acls-not-enforced": "#/security/acls",
    "quotas": "#/security/quotas",
    "tokens-unavailable": "#/security/tokens",
    "tests": "#/tests",
}
REJECTED = "Offset rejected by client."


def chain(subtopology_id: str, *nodes: TopologyDescriptionNode) -> TopologyDescriptionSubtopology:
    return TopologyDescriptionSubtopology(subtopology_id=subtopology_id, nodes=list(nodes))


def processor(name: str, *successors: str, stores: tuple[str, ...] = ()) -> TopologyDescriptionNode:
    return TopologyDescriptionNode(
        name=name, node_type=2, stores=list(stores), successors=list(successors)
    )


def source(name: str, topic: str, *successors: str) -> TopologyDescriptionNode:
    return TopologyDescriptionNode(
        name=name, node_type=1, source_topics=[topic], successors=list(successors)
    )


def sink(name: str, topic: str) -> TopologyDescriptionNode:
    return TopologyDescriptionNode(name=name, node_type=3, sink_topic=topic)


TOPOLOGY = TopologyDescription(
    subtopologies=[
        chain(
            "0",
            source("KSTREAM-SOURCE-0000000000", "orders", "KSTREAM-AGGREGATE-0000000001"),
            processor(
                "KSTREAM-AGGREGATE-0000000001",
                "KTABLE-TOSTREAM-0000000002",
                "KTABLE-FILTER-0000000003",
                stores=("totals",),
            ),
            processor("KTABLE-TOSTREAM-0000000002", "KSTREAM-SINK-0000000004"),
            processor("KTABLE-FILTER-0000000003", "KSTREAM-SINK-0000000004"),
            sink("KSTREAM-SINK-0000000004", "payments"),
        ),
        chain("1", *(processor(f"N{n}", f"N{n + 1}") for n in range(501))),
    ],
    global_stores=[
        TopologyDescriptionGlobalStore(
            source=source("KSTREAM-SOURCE-0000000005", "rates", "KTABLE-SOURCE-0000000006"),
            processor=processor("KTABLE-SOURCE-0000000006", stores=("rates",)),
        )
    ],
)
# Names of clients: markup, a cycle, a successor that does not exist, and two nodes of one name.
HOSTILE_TOPOLOGY = TopologyDescription(
    subtopologies=[
        chain(
            EVIL,
            source(EVIL * 20, EVIL, "b", "nowhere"),
            processor("b", "c", "b", stores=(EVIL,)),
            processor("c", "b"),
            processor("c", EVIL * 20),
        )
    ]
)

SCHEMAS = {
    "typed-value": {
        "type": "record",
        "name": "Order",
        "fields": [{"name": "country", "type": "string"}, {"name": "number", "type": "long"}],
    },
    EVIL.replace("\x1b", ""): "string",
}


def register(url: str) -> None:
    """Register the schemas. Their IDs follow the order of SCHEMAS."""
    for subject, schema in SCHEMAS.items():
        body = json.dumps({"schema": json.dumps(schema)}).encode()
        urllib.request.urlopen(f"{url}/subjects/{quote(subject, safe='')}/versions", body).close()


def arm(ready: dict[str, Any]) -> None:
    """Arm faults that no test of this module triggers."""
    token = Path(ready["control_token_file"]).read_text().strip()
    host, port = ready["control"].split(":")
    with socket.create_connection((host, int(port))) as connection:
        lines = connection.makefile("rw")
        for order in (
            {"do": "login", "token": token},
            {"do": "fault", "api": "Produce", "topic": EVIL, "error": "NOT_LEADER_OR_FOLLOWER"},
            {"do": "fault", "api": "DeleteTopics", "effect": "delay", "ms": 5},
        ):
            lines.write(json.dumps(order) + "\n")
            lines.flush()
            assert json.loads(lines.readline())["ok"]


async def seed(address: str) -> None:
    """Create topics, records and groups, some of them with hostile names."""
    async with open_cluster([Endpoint.parse(address)], "shop") as cluster:
        topics = [NewTopic("orders", 6), NewTopic("payments", 1), NewTopic("typed", 1)]
        topics += [NewTopic("written", 3), NewTopic("oversized", 1)]
        await create_topics(cluster, topics)
        producer = Producer(cluster)
        records: dict[tuple[str, int], list[Record]] = {("orders", at): [] for at in range(6)}
        for n in range(600):
            order = {"order": n, "customer": f"c{n % 37}", "country": ["DE", "FR", "IT"][n % 3]}
            record = Record(
                b"c%d" % (n % 37), json.dumps(order).encode(), 1_767_225_600_000 + n, [], -1
            )
            records["orders", n % 6].append(record)
        headers: list[tuple[str, bytes | None]] = [(EVIL, EVIL.encode())]
        records["payments", 0] = [
            Record(EVIL.encode(), EVIL.encode(), 1, headers, -1),
            Record(None, b'{"text": "' + b"y" * 20_000 + b'the end"}', 2, [], -1),
        ]
        # the maximum of 64 bits
        number = b"\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01"
        records["typed", 0] = [
            Record(b"a", b"\0\0\0\0\1\x04DE" + number, 1, [], -1),
            Record(b"b", b"\0\0\0\0\1\x7f", 2, [], -1),
            Record(b"c", b"\0\0\0\0\2" + bytes([2 * len(EVIL)]) + EVIL.encode(), 3, [], -1),
        ]
        await producer.write(records)
        oversized = [Record(b"k", b"small", 1, [], -1), Record(b"k", bytes(OVERSIZED), 2, [], -1)]
        await Producer(cluster, codec=Codec.GZIP).write({("oversized", 0): oversized})
        await commit_offsets(cluster, "billing", {("orders", at): 60 for at in range(6)})
        await commit_offsets(cluster, EVIL, {("payments", 0): 1})
        await seed_share_group(cluster)
        await seed_streams_group(cluster, "totals", TOPOLOGY)
        await seed_streams_group(cluster, "hostile", HOSTILE_TOPOLOGY)


async def seed_share_group(cluster: ClusterClient) -> None:
    """Create a share group with records in its dead-letter queue."""
    enabled = {"errors.deadletterqueue.group.enable": "true"}
    await create_topics(cluster, [NewTopic("dlq.orders", 1, configs=enabled)])
    await alter_share_offsets(cluster, "queue", {("orders", 0): 0})
    changes = {"errors.deadletterqueue.topic.name": (Operation.SET, "dlq.orders")}
    await alter_configs(cluster, Resource.GROUP, "queue", changes)
    records = []
    for offset in range(3):
        source = {"topic": "orders", "partition": "0", "offset": f"{offset}", "group": "queue"}
        source |= {"delivery.count": "5", "message": EVIL if offset else REJECTED}
        headers = [(f"__dlq.errors.{name}", value.encode()) for name, value in source.items()]
        records.append(Record(None, None, offset, headers, -1))
    await Producer(cluster).write({("dlq.orders", 0): records})


async def seed_streams_group(
    cluster: ClusterClient, name: str, description: TopologyDescription
) -> None:
    """Create a streams group that has a member and a topology description."""
    coordinator = await cluster.coordinator(name)
    beat = StreamsGroupHeartbeatRequest(
        group_id=name,
        member_id="a",
        topology=topology(subtopology("0", "orders")),
        process_id="p",
        rebalance_timeout_ms=60_000,
        active_tasks=[],
        standby_tasks=[],
        warmup_tasks=[],
    )
    check((await coordinator.ask(beat)).error_code)
    update = StreamsGroupTopologyDescriptionUpdateRequest(
        group_id=name, member_id="a", topology_description=description
    )
    check((await coordinator.ask(update)).error_code)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    port_file = tmp_path_factory.mktemp("console") / "ready.json"
    ports = ("--port", "--http-port", "--registry-port", "--control-port")
    flags = ["--memory", *(each for name in ports for each in (name, "0"))]
    with serving(*flags, "--port-file", str(port_file)):
        ready: dict[str, Any] = json.loads(wait_for(port_file))
        register(ready["schema_registry"])
        trio.run(seed, ready["bootstrap_servers"])
        arm(ready)
        yield ready


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


class Shown:
    """An open page, with its errors and its requests to other servers."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.errors: list[str] = []
        self.foreign_requests: list[str] = []
        self._base = base
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on(
            "console",
            lambda message: self.errors.append(message.text) if message.type == "error" else None,
        )
        page.on("request", self._on_request)

    def _on_request(self, request: Any) -> None:
        if not request.url.startswith((self._base, "blob:")):
            self.foreign_requests.append(request.url)

    def go(self, fragment: str) -> Page:
        """Open a page of the console, and wait until it replaces the previous one."""
        self.open(fragment)
        assert not self.page.locator("main .failed").count(), self.page.inner_text("main")
        return self.page

    def open(self, fragment: str) -> Page:
        """Open a page of the console, which may fail."""
        self.page.evaluate("document.querySelector('main > div')?.setAttribute('data-old', '')")
        self.page.goto(f"{self._base}/console/{fragment}")
        self.page.wait_for_selector("main > div:not([data-old]) h1")
        return self.page


@pytest.fixture
def shown(browser: Browser, server: dict[str, Any]) -> Iterator[Shown]:
    with browser.new_context(bypass_csp=False) as context:
        page = Shown(context.new_page(), server["http"])
        yield page
        assert page.errors == []
        assert page.foreign_requests == []


@pytest.mark.parametrize("theme", THEMES)
@pytest.mark.parametrize("width", [width for width, _ in SIZES])
def test_pages_are_not_wider_than_window(shown: Shown, theme: Any, width: int) -> None:
    PICTURES.mkdir(parents=True, exist_ok=True)
    shown.page.set_viewport_size({"width": width, "height": dict(SIZES)[width]})
    shown.page.emulate_media(color_scheme=theme)
    for name, fragment in PAGES.items():
        page = shown.go(fragment)
        page.screenshot(path=PICTURES / f"{name}-{theme}-{width}.png")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name


@pytest.mark.parametrize("theme", THEMES)
def test_axe_finds_no_serious_violation(
    browser: Browser, server: dict[str, Any], theme: Any
) -> None:
    with browser.new_context(bypass_csp=True, color_scheme=theme) as context:
        shown_page = Shown(context.new_page(), server["http"])
        found = []
        for name, fragment in PAGES.items():
            page = shown_page.go(fragment)
            page.evaluate(AXE.read_text())
            broken = page.evaluate("axe.run().then((it) => it.violations)")
            found += [(name, each["id"]) for each in broken if each["impact"] in SERIOUS]
        assert found == []


def test_overview_is_painted_quickly_and_is_small(shown: Shown) -> None:
    page = shown.go("#/")
    size = page.evaluate(
        "performance.getEntries().reduce((sum, each) => sum + (each.transferSize || 0), 0)"
    )
    paints = []
    for _ in range(5):
        page.reload()
        page.wait_for_selector("main h1")
        paints.append(
            page.evaluate("performance.getEntriesByName('first-contentful-paint')[0].startTime")
        )
    paint = sorted(paints)[2]
    print(f"\nfigures: first paint {paint:.0f} ms (median of 5), {size / 1000:.0f} kB")
    assert size < PAGE_BYTES


@pytest.mark.parametrize("severity", [WARNING, ERROR])
def test_warning_is_listed_but_state_stays_good(shown: Shown, severity: str) -> None:
    row = {"what": "directory", "where": "1:/data", "problem": "nearly full", "action": "make room"}

    def respond_with_problem(route: Route) -> None:
        overview = route.fetch().json()
        route.fulfill(json=overview | {"problems": [row | {"severity": severity}]})

    shown.page.route("**/overview", respond_with_problem)
    page = shown.go("#/")
    label, shade = ("1 problem", "bad") if severity == ERROR else ("running", "good")
    expect(page.locator(f"main .cards .{shade}")).to_have_text(label)
    expect(page.locator("main .problems")).to_contain_text("nearly full")


def test_hostile_texts_are_rendered_as_text(shown: Shown) -> None:
    page = shown.go("#/topics/payments/messages")
    page.locator("tr.pick").nth(1).focus()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog")
    dialog.wait_for(state="visible")
    assert "onerror" in dialog.inner_text()
    assert "\\u001b" in dialog.inner_text()
    assert page.locator("main img, dialog img").count() == 0
    assert "broken" not in page.title()
    shown.go("#/groups")
    assert page.locator("main img").count() == 0


def test_values_are_shown_decoded_or_with_reason(shown: Shown) -> None:
    page = shown.go("#/topics/typed/messages")
    rows, dialog = page.locator("tr.pick"), page.locator("dialog")
    rows.nth(2).click()
    expect(dialog).to_contain_text("avro of typed-value, version 1, schema 1 (AVRO)")
    expect(dialog.locator("pre").nth(1)).to_have_text(
        '{\n  "country": "DE",\n  "number": 9223372036854775807\n}'
    )
    page.screenshot(path=PICTURES / "by-schema-detail.png")
    page.keyboard.press("Escape")
    rows.nth(1).click()
    expect(dialog).to_contain_text("The data does not match its schema: byte 1: ")
    page.screenshot(path=PICTURES / "by-schema-trouble.png")
    page.keyboard.press("Escape")
    rows.nth(0).click()
    expect(dialog).to_contain_text("onerror")
    assert page.locator("main img, dialog img").count() == 0


def test_long_value_is_truncated_and_loaded_on_demand(shown: Shown) -> None:
    page = shown.go("#/topics/payments/messages")
    page.locator("tr.pick").first.click()
    assert "the end" not in page.locator("dialog").inner_text()
    page.get_by_role("button", name="Load all").click()
    expect(page.locator("dialog")).to_contain_text("the end")


def test_oversized_record_is_shown_by_size_and_omitted_from_saved_file(shown: Shown) -> None:
    page = shown.go("#/topics/oversized/messages")
    row = page.locator("tr.pick").first
    size = row.locator("td.mono").last.inner_text().partition(" ")[0]
    assert int(size.replace(",", "")) > OVERSIZED
    expect(row).to_contain_text("bytes, not shown")
    expect(row.locator("td").last).to_have_text("17.8 MB")
    row.click()
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text(
        f"{size} bytes, not shown; use kbroker topic consume to read the record."
    )
    expect(dialog.locator("pre")).to_have_count(0)
    expect(dialog.get_by_role("button", name="Resend")).to_have_count(0)
    page.keyboard.press("Escape")
    with page.expect_download() as saved:
        page.get_by_role("button", name="Save as NDJSON").click()
    assert '"value":"small"' in saved.value.path().read_text()
    assert len(saved.value.path().read_text().splitlines()) == 1
    expect(page.locator("#notes")).to_contain_text("1 records are too large to read")


def test_url_contains_query(shown: Shown) -> None:
    page = shown.go("#/topics/orders/messages")
    page.locator("input[name=where]").fill('value.country == "FR"')
    page.locator("select[name=from]").select_option("oldest")
    page.get_by_role("button", name="Search", exact=True).click()
    expect(page.locator("main [role=status]")).to_contain_text("200 records found, 600 scanned")
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    expect(page.locator("main [role=status]")).to_contain_text("200 records found, 600 scanned")
    assert page.locator("input[name=where]").input_value() == 'value.country == "FR"'


def test_continued_search_reaches_the_end(shown: Shown) -> None:
    page = shown.go("#/topics/orders/messages?from=oldest&contains=nowhere&bytes=1")
    status = page.locator("main [role=status]")
    expect(status).to_contain_text("0 records found, 600 scanned")
    expect(status).to_contain_text("complete")
    assert page.get_by_role("button", name="Continue search").count() == 0


def test_all_rows_of_first_page_are_rendered_without_scrolling(shown: Shown) -> None:
    page = shown.go("#/topics/orders/messages")
    expect(page.locator("main [role=status]")).to_contain_text("200 records")
    expect(page.locator("tbody tr.pick")).to_have_count(200)


def test_settings_are_filtered_and_described_in_full(shown: Shown) -> None:
    page = shown.go("#/topics/orders/config")
    rows = page.locator(".settings li")
    page.get_by_label("Show settings without effect").check()
    expect(rows.last).to_contain_text("unclean.leader.election.enable")
    rows.last.scroll_into_view_if_needed()
    expect(rows.last).to_be_in_viewport()
    page.get_by_label("Name or description contains").fill("segment.jitter.ms")
    expect(rows).to_have_count(1)
    hidden = "all => all.some((it) => it.scrollWidth > it.clientWidth)"
    assert page.locator(".settings p").evaluate_all(hidden) is False


def test_untouched_produce_form_writes_nothing(shown: Shown) -> None:
    page = shown.go("#/topics/written/produce")
    posts: list[str] = []
    page.on(
        "request", lambda request: posts.append(request.url) if request.method == "POST" else None
    )
    page.get_by_role("button", name="Produce").click()
    expect(page.get_by_role("alert")).to_contain_text("Enter a value")
    assert posts == []
    page.get_by_label("Value is").select_option("empty")
    with page.expect_response("**/records") as written:
        page.get_by_role("button", name="Produce").click()
    assert written.value.ok


def test_resend_asks_for_confirmation(shown: Shown) -> None:
    page = shown.go("#/topics/written/messages?from=oldest")
    posts: list[str] = []
    page.on(
        "request", lambda request: posts.append(request.url) if request.method == "POST" else None
    )
    page.locator("tbody tr.pick").first.click()
    page.get_by_role("button", name="Resend").click()
    page.get_by_role("button", name="Cancel").click()
    assert posts == []
    page.get_by_role("button", name="Resend").click()
    with page.expect_response("**/resend") as written:
        page.get_by_role("button", name="Append").click()
    assert written.value.ok


def test_live_records_of_several_partitions_are_in_time_order(shown: Shown) -> None:
    page = shown.go("#/topics/written/messages?from=live&contains=tail")
    expect(page.locator("main [role=status]")).to_contain_text("Live")
    script = """async ([partition, from]) => {
      const { token } = await (await fetch("/api/v1/session")).json();
      for (let n = 0; n < 5; n += 1)
        await fetch("/api/v1/topics/written/records", {
          method: "POST", headers: { "x-kbroker-token": token },
          body: JSON.stringify({ partition, value: `tail ${partition}`, timestamp: from - 2 * n }),
        });
    }"""
    now_ms = int(time.time() * 1000)
    for partition in range(3):
        page.evaluate(script, [partition, now_ms + partition])
    expect(page.locator("tbody tr.pick")).to_have_count(15)
    times = page.locator("tbody tr.pick td:first-child").all_inner_texts()
    assert times == sorted(times, reverse=True)
    assert len(set(times)) > 5


def test_page_says_that_broker_is_unreachable_and_recovers(
    browser: Browser, server: dict[str, Any]
) -> None:
    with browser.new_context() as context:
        page = Shown(context.new_page(), server["http"]).go("#/")
        context.set_offline(True)
        banner = page.locator("#unreachable")
        expect(banner).to_contain_text("does not answer. Last update", timeout=15_000)
        expect(page.locator("#notes")).not_to_contain_text("Failed to fetch")
        context.set_offline(False)
        expect(banner).to_be_hidden(timeout=15_000)


def test_only_visible_rows_of_long_table_are_rendered(shown: Shown) -> None:
    page = shown.go("#/topics/orders/messages")
    for _ in range(2):
        page.get_by_role("button", name="Load more").click()
    expect(page.locator("main [role=status]")).to_contain_text("600 records")
    assert page.locator("tbody tr.pick").count() < 100
    page.locator("main .scroll").evaluate("each => { each.scrollTop = each.scrollHeight; }")
    expect(page.locator("main tbody")).to_contain_text('"order": 0,')


def test_produced_record_appears_in_live_view(shown: Shown) -> None:
    page = shown.go("#/topics/orders/messages?from=live&contains=by-hand")
    expect(page.locator("main [role=status]")).to_contain_text("Live")
    other = page.context.new_page()
    other.goto(page.url.split("#")[0] + "#/topics/orders/produce")
    other.get_by_label("Value", exact=True).fill("written by-hand")
    other.get_by_role("button", name="Produce").click()
    page.wait_for_selector("td:has-text('written by-hand')")


def test_share_group_links_to_its_dead_letters(shown: Shown) -> None:
    page = shown.go("#/groups/queue")
    expect(page.locator("main")).to_contain_text("Dead-letter queue")
    cards = page.locator("main .cards").nth(1)
    expect(cards).to_contain_text("Records of all groups")
    cards.get_by_role("link", name="dlq.orders").click()
    page.wait_for_selector("tr.pick")
    assert page.get_by_label("Header").input_value() == "__dlq.errors.group=queue"
    last = page.locator("tr.pick").last
    expect(last).to_contain_text("orders-0 offset 0, delivered 5 times: Offset rejected by client.")
    expect(page.locator("tr.pick").first).to_contain_text("<img src=x")
    last.focus()
    page.keyboard.press("Enter")
    dialog = page.locator("dialog")
    expect(dialog).to_contain_text("Cause: Offset rejected by client.")
    dialog.get_by_role("link", name="orders, partition 0, offset 0").click()
    expect(page.locator("h1").first).to_have_text("orders")
    expect(page.locator("tr.pick").first).to_contain_text('"order": 0')


def test_problem_of_dead_letter_queue_is_shown(shown: Shown) -> None:
    queue = {"topic": "dlq.x", "copies_records": True, "records": None, "problem": f"no {EVIL}"}
    shown.page.route(
        "**/dead-letter-queue", lambda route: route.fulfill(json={"dead_letter_queue": queue})
    )
    page = shown.go("#/groups/queue")
    expect(page.locator("main .bad")).to_contain_text("Problem: no <img src=x")
    assert page.locator("main img").count() == 0


def test_streams_group_has_drawing_of_its_topology(shown: Shown) -> None:
    page = shown.go("#/groups/totals")
    page.wait_for_selector(".graph")
    first, stores = page.locator(".graph").all()
    assert first.locator("g.node").count() == 5
    assert first.locator("path.edge").count() == 5
    places = {
        (each.locator("text.name").text_content() or "").rpartition("-")[2]: each.bounding_box()
        for each in first.locator("g.node").all()
    }
    heights = [round((places[f"000000000{n}"] or {"y": 0})["y"]) for n in range(5)]
    assert heights[0] < heights[1] < heights[2] == heights[3] < heights[4]
    expect(stores.locator("g.processor text.detail")).to_have_text("stores: rates")
    expect(page.locator("main")).to_contain_text("501 more nodes are only listed.")
    table = page.get_by_role("region", name="Nodes of the topology")
    expect(table.locator("tbody tr").first).to_contain_text("KSTREAM-SOURCE-0000000000")
    expect(table.get_by_role("link", name="payments")).to_have_attribute(
        "href", "#/topics/payments"
    )


def test_names_in_topology_are_shown_as_text(shown: Shown) -> None:
    page = shown.go("#/groups/hostile")
    page.wait_for_selector(".graph g.node")
    assert page.locator(".graph g.node").count() == 4
    assert page.locator("main img").count() == 0
    assert "broken" not in page.title()
    widths = page.locator(".graph text").evaluate_all("all => all.map((it) => it.getBBox().width)")
    assert max(widths) < 264
    page.locator(".graph").focus()
    assert page.evaluate("document.activeElement.getAttribute('aria-label')").startswith(
        "Subtopology"
    )


def test_missing_topology_is_explained(shown: Shown) -> None:
    shown.page.route(
        "**/topology", lambda route: route.fulfill(json={"status": "NOT_STORED", "nodes": []})
    )
    page = shown.go("#/groups/totals")
    expect(page.locator("main")).to_contain_text("No topology description is stored.")


def test_faults_are_disarmed_and_clock_is_advanced(shown: Shown) -> None:
    page = shown.go("#/tests")
    rows = page.locator("tbody tr:has(button)")
    expect(rows).to_have_count(2)
    expect(rows.first).to_contain_text("onerror")
    assert page.locator("main img").count() == 0
    rows.first.get_by_role("button").click()
    expect(rows).to_have_count(1)
    page.get_by_role("button", name="Disarm all").click()
    expect(rows).to_have_count(0)
    page.locator("input[name=amount]").fill("25")
    page.get_by_role("button", name="Advance clock").click()
    expect(page.locator("main .cards")).to_contain_text("25 hours")
    page.screenshot(path=PICTURES / "tests-moved.png")


def test_theme_is_kept_and_keyboard_shortcuts_open_pages(shown: Shown) -> None:
    page = shown.go("#/")
    before = page.evaluate("document.documentElement.dataset.theme")
    page.locator("#theme").click()
    page.reload()
    page.wait_for_selector("main h1")
    assert page.evaluate("document.documentElement.dataset.theme") != before
    page.keyboard.press("g")
    page.keyboard.press("t")
    page.wait_for_selector("h1:has-text('Topics')")
    page.keyboard.press("f")
    assert page.evaluate("document.activeElement.name") == "search"
