"""Tasks of an operator in the console: topics, records, settings and groups. See soak.toml.

Each task is done in a wide and in a narrow window. Needs Debian's chromium, playwright, and
axe-core below .work/axe. Screenshots are written to .work/console.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

import pytest
import trio
from playwright.sync_api import Browser, Locator, Page, expect

from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.configs import Resource, describe_configs
from kbroker.client.endpoint import Endpoint
from kbroker.client.groups import commit_offsets, committed_offsets, list_groups
from kbroker.client.member import Member
from kbroker.client.producer import Producer
from kbroker.client.share_groups import alter_share_offsets
from kbroker.client.topic_details import Row, topic_details
from kbroker.client.topics import NewTopic, create_topics
from kbroker.protocol.records import Record

from ..cli.test_serve import serving, wait_for
from .browser import chromium
from .long_console_pages import AXE, EVIL, PICTURES, SERIOUS, THEMES, Shown

WIDTHS = {1440: 900, 390: 844}
T = TypeVar("T")


class Kafka:
    """The broker's Kafka port, for preparations and checks."""

    def __init__(self, address: str) -> None:
        self._endpoint = Endpoint.parse(address)

    def run(self, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
        async def main() -> T:
            async with open_cluster([self._endpoint]) as cluster:
                return await work(cluster)

        return trio.run(main)

    def create(self, name: str, partitions: int = 1, records: int = 0) -> None:
        async def work(cluster: ClusterClient) -> None:
            await create_topics(cluster, [NewTopic(name, partitions)])
            for at in range(partitions if records else 0):
                batch = [Record(b"k", b"v", 1_767_225_600_000 + n, [], -1) for n in range(records)]
                await Producer(cluster).write({(name, at): batch})

        self.run(work)

    def commit(self, group: str, offsets: Mapping[tuple[str, int], int]) -> None:
        self.run(lambda cluster: commit_offsets(cluster, group, offsets))

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        return self.run(lambda cluster: committed_offsets(cluster, group))

    def topic(self, name: str) -> Row:
        (row,) = self.run(lambda cluster: topic_details(cluster, [name]))
        return row

    def topics(self) -> set[str]:
        found = self.run(lambda cluster: cluster.metadata())
        return {row.name or "" for row in found.topics}

    def groups(self) -> dict[str, str]:
        return {each.name: each.type for each in self.run(list_groups)}

    def setting(self, kind: Resource, name: str, key: str) -> str | None:
        found = self.run(lambda cluster: describe_configs(cluster, kind, [name], keys=[key]))
        return found[name][0].value


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    port_file = tmp_path_factory.mktemp("manage") / "ready.json"
    ports = ("--port", "0", "--http-port", "0", "--port-file", str(port_file))
    with serving("--memory", *ports):
        ready: dict[str, Any] = json.loads(wait_for(port_file))
        yield ready


@pytest.fixture
def kafka(server: dict[str, Any]) -> Kafka:
    return Kafka(server["bootstrap_servers"])


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


@pytest.fixture
def shown(browser: Browser, server: dict[str, Any], width: int) -> Iterator[Shown]:
    viewport: Any = {"width": width, "height": WIDTHS[width]}
    with browser.new_context(viewport=viewport) as context:
        page = Shown(context.new_page(), server["http"])
        yield page
        assert page.errors == []
        assert page.foreign_requests == []


def press(place: Page | Locator, name: str) -> None:
    place.get_by_role("button", name=name, exact=True).click()


def opened(page: Page, name: str) -> Locator:
    """Open a dialog by its button."""
    press(page.locator("main"), name)
    return dialog_of(page)


def dialog_of(page: Page) -> Locator:
    dialog = page.locator("dialog[open]")
    dialog.wait_for(state="visible")
    return dialog


def check_layout(page: Page, picture: str, width: int) -> None:
    """Check that the page and its dialog are not wider than the window."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"manage-{picture}-{width}.png")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    for dialog in page.locator("dialog[open]").all():
        assert dialog.evaluate("each => each.scrollWidth - each.clientWidth") <= 0


def test_topic_is_created_with_settings(shown: Shown, kafka: Kafka, width: int) -> None:
    page, name = shown.go("#/topics"), f"created-{width}"
    dialog = opened(page, "Create topic")
    dialog.get_by_label("Name", exact=True).fill(name)
    partitions = dialog.get_by_label("Partitions", exact=True)
    expect(partitions).to_have_attribute("placeholder", "1 (default of the broker)")
    partitions.fill("3")
    dialog.get_by_label("Cleanup policy").select_option("compact")
    dialog.get_by_label("More settings").fill("max.message.bytes=2000000\n")
    check_layout(page, "create-topic", width)
    press(dialog, "Create topic")
    expect(page.locator("main h1")).to_have_text(name)
    topic = kafka.topic(name)
    assert len(topic["partitions"]) == 3
    assert topic["configs"] == {"cleanup.policy": "compact", "max.message.bytes": "2000000"}


def test_topic_is_created_with_the_keyboard_and_assigned_replicas(
    shown: Shown, kafka: Kafka, width: int
) -> None:
    page, name = shown.go("#/topics"), f"typed-{width}"
    page.get_by_role("button", name="Create topic").focus()
    page.keyboard.press("Enter")
    dialog_of(page)
    page.keyboard.type(name)
    for _ in range(6):
        page.keyboard.press("Tab")
    page.keyboard.type("1; 1")
    page.keyboard.press("Enter")
    expect(page.locator("main h1")).to_have_text(name)
    assert len(kafka.topic(name)["partitions"]) == 2


def test_change_loads_token_of_another_process_and_is_sent_again(shown: Shown, width: int) -> None:
    page = shown.go("#/topics")
    page.evaluate("import('./api.js').then((each) => (each.session.token = 'other process'))")
    dialog = opened(page, "Create topic")
    dialog.get_by_label("Name", exact=True).fill(f"token-{width}")
    press(dialog, "Create topic")
    expect(page.get_by_role("link", name=f"token-{width}")).to_be_visible()
    assert any("403" in each for each in shown.errors)
    shown.errors.clear()  # the browser logs the response with status 403


def test_error_of_broker_is_shown_in_dialog(shown: Shown, kafka: Kafka, width: int) -> None:
    kafka.create(f"taken-{width}")
    page = shown.go("#/topics")
    dialog = opened(page, "Create topic")
    dialog.get_by_label("Name", exact=True).fill(f"taken-{width}")
    press(dialog, "Create topic")
    expect(dialog.get_by_role("alert")).to_contain_text("TOPIC_ALREADY_EXISTS")
    dialog.get_by_label("More settings").fill("no equals sign")
    press(dialog, "Create topic")
    expect(dialog.get_by_role("alert")).to_contain_text("is not NAME=VALUE")
    press(dialog, "Cancel")
    expect(page.locator("dialog[open]")).to_have_count(0)
    assert all("409" in each for each in shown.errors)
    shown.errors.clear()


def test_open_dialog_is_closed_when_the_user_goes_back(shown: Shown) -> None:
    page = shown.go("#/")
    page.evaluate("location.hash = '#/topics'")
    expect(page.locator("main h1")).to_have_text("Topics")
    opened(page, "Create topic")
    page.go_back()
    expect(page.locator("main h1")).to_have_text("Overview")
    expect(page.locator("dialog[open]")).to_have_count(0)


def test_selected_topics_are_deleted_after_preview(shown: Shown, kafka: Kafka, width: int) -> None:
    names = [f"old-{width}-{n}" for n in range(3)]
    for name in names:
        kafka.create(name, records=5)
    page = shown.go(f"#/topics?search=old-{width}")
    delete = page.get_by_role("button", name="Delete", exact=False)
    expect(delete).to_be_disabled()
    for name in names[:2]:
        page.get_by_label(f"Select {name}").check()
    expect(delete).to_have_text("Delete (2)")
    delete.click()
    dialog = dialog_of(page)
    expect(dialog.get_by_role("region", name="Topics to delete")).to_contain_text(names[1])
    confirm = dialog.get_by_role("button", name="Delete topics")
    expect(confirm).to_be_disabled()
    check_layout(page, "delete-topics", width)
    dialog.get_by_label("Type 2 topics to confirm").fill("2 topics")
    confirm.click()
    expect(page.locator("main tbody")).not_to_contain_text(names[0])
    assert kafka.topics() & set(names) == {names[2]}


def test_topic_is_deleted_after_its_name_is_typed(shown: Shown, kafka: Kafka, width: int) -> None:
    name = f"unused-{width}"
    kafka.create(name, records=5)
    page = shown.go(f"#/topics/{name}/partitions")
    dialog = opened(page, "Delete topic")
    expect(dialog.locator("tbody")).to_contain_text(name)
    confirm = dialog.get_by_role("button", name="Delete topic")
    dialog.get_by_label("to confirm").fill("unused")
    expect(confirm).to_be_disabled()
    dialog.get_by_label("to confirm").fill(name)
    confirm.click()
    expect(page.locator("main h1")).to_have_text("Topics")
    assert name not in kafka.topics()


def test_partitions_are_added_after_preview(shown: Shown, kafka: Kafka, width: int) -> None:
    name = f"grown-{width}"
    kafka.create(name, 2)
    page = shown.go(f"#/topics/{name}/partitions")
    dialog = opened(page, "Add partitions")
    dialog.get_by_label("New number of partitions").fill("4")
    expect(dialog.get_by_role("button", name="Add partitions")).to_be_disabled()
    press(dialog, "Preview")
    expect(dialog.locator(".facts")).to_contain_text("Partitions afterwards4")
    check_layout(page, "add-partitions", width)
    press(dialog, "Add partitions")
    expect(page.locator("main tbody tr")).to_have_count(4)
    assert len(kafka.topic(name)["partitions"]) == 4


def test_records_are_deleted_after_preview(shown: Shown, kafka: Kafka, width: int) -> None:
    name = f"cleared-{width}"
    kafka.create(name, 2, records=9)
    page = shown.go(f"#/topics/{name}/partitions")
    dialog = opened(page, "Delete records")
    press(dialog, "Preview")  # the browser asks for a choice
    expect(dialog.locator("select[name=until]")).to_be_focused()
    dialog.locator("select[name=until]").select_option("offset")
    expect(dialog.locator("input[name=time]")).to_be_hidden()
    dialog.get_by_label("Offset", exact=True).fill("4")
    dialog.locator("input[name=partitions]").fill("1")
    press(dialog, "Preview")
    expect(dialog.get_by_role("status")).to_contain_text("4 records will be deleted.")
    check_layout(page, "delete-records", width)
    dialog.get_by_label("Offset", exact=True).fill("5")
    expect(dialog.get_by_role("button", name="Delete records")).to_be_disabled()
    press(dialog, "Preview")
    press(dialog, "Delete records")
    expect(page.locator("#notes")).to_contain_text(f"5 records of {name} are deleted.")
    assert [each["start_offset"] for each in kafka.topic(name)["partitions"]] == [0, 5]


def test_records_before_a_time_are_deleted(shown: Shown, kafka: Kafka, width: int) -> None:
    name = f"aged-{width}"
    kafka.create(name, records=9)
    dialog = opened(shown.go(f"#/topics/{name}/partitions"), "Delete records")
    dialog.locator("select[name=until]").select_option("time")
    dialog.get_by_label("Time (UTC)").fill("2026-01-01T00:00:00.001")
    press(dialog, "Preview")
    expect(dialog.get_by_role("status")).to_contain_text("1 record will be deleted.")


def test_topic_setting_is_edited_and_reset(shown: Shown, kafka: Kafka, width: int) -> None:
    name, key = f"set-{width}", "retention.ms"
    kafka.create(name)
    page = shown.go(f"#/topics/{name}/config")
    page.get_by_label("Name or description contains").fill(key)
    row = page.locator(".settings li").filter(has=page.get_by_text(key, exact=True))
    expect(row).to_contain_text("7 days")
    expect(row).to_contain_text("valid: an integer of at least -1")
    press(row, "Edit")
    dialog = dialog_of(page)
    dialog.get_by_label("Value").fill("86400000")
    press(dialog, "Preview")
    expect(dialog.locator(".facts")).to_contain_text("604800000 7 days (default)")
    expect(dialog.locator(".facts")).to_contain_text("86400000 1 day (topic)")
    check_layout(page, "topic-setting", width)
    press(dialog, "Save")
    expect(row).to_contain_text("1 day")
    assert kafka.setting(Resource.TOPIC, name, key) == "86400000"
    press(row, "Reset")
    dialog = dialog_of(page)
    expect(dialog.locator(".facts")).to_contain_text("604800000 7 days (default)")
    press(dialog, "Reset to default")
    expect(row).to_contain_text("7 days")
    assert kafka.setting(Resource.TOPIC, name, key) == "604800000"


def test_preview_of_retention_says_how_many_records_are_too_old(
    shown: Shown, kafka: Kafka, width: int
) -> None:
    name = f"old-{width}"
    kafka.create(name, records=9)
    page = shown.go(f"#/topics/{name}/config")
    for key, value, text in (
        ("retention.ms", "1d", "9 of 9 records, written before 20"),
        ("retention.bytes", "1", " of "),
    ):
        page.get_by_label("Name or description contains").fill(key)
        row = page.locator(".settings li").filter(has=page.get_by_text(key, exact=True))
        press(row, "Edit")
        dialog = dialog_of(page)
        dialog.get_by_label("Value").fill(value)
        press(dialog, "Preview")
        expect(dialog.locator(".facts")).to_contain_text("Deletes up to")
        expect(dialog.locator(".facts")).to_contain_text(text)
        expect(dialog).to_contain_text("The broker deletes whole segments")
        check_layout(page, f"retention-{key}", width)
        press(dialog, "Cancel")


def test_enter_in_a_field_shows_the_preview(shown: Shown, kafka: Kafka, width: int) -> None:
    name = f"entered-{width}"
    kafka.create(name)
    page = shown.go(f"#/topics/{name}/partitions")
    dialog = opened(page, "Add partitions")
    count = dialog.get_by_label("New number of partitions")
    count.fill("4")
    count.press("Enter")
    expect(dialog.locator(".facts")).to_contain_text("Partitions afterwards4")
    count.press("Enter")
    expect(dialog.get_by_role("button", name="Add partitions")).to_be_enabled()
    assert len(kafka.topic(name)["partitions"]) == 1


def test_invalid_setting_is_rejected_in_dialog(shown: Shown, kafka: Kafka, width: int) -> None:
    kafka.create(f"wrong-{width}")
    page = shown.go(f"#/topics/wrong-{width}/config")
    page.get_by_label("Name or description contains").fill("segment.bytes")
    press(page.locator(".settings li").first, "Edit")
    dialog = dialog_of(page)
    dialog.get_by_label("Value").fill("many")
    press(dialog, "Preview")
    expect(dialog.get_by_role("alert")).to_contain_text("Invalid value many")
    expect(dialog.get_by_role("button", name="Save")).to_be_disabled()
    assert all("400" in each for each in shown.errors)
    shown.errors.clear()


def test_node_setting_is_edited_for_one_node_and_for_all(
    shown: Shown, kafka: Kafka, width: int
) -> None:
    page = shown.go("#/cluster")
    page.get_by_role("link", name="Settings of all nodes").click()
    for tab, value in (("All nodes", "3000000"), ("Node 1", "2000000")):
        open_tab(page, tab)
        search = page.get_by_label("Name or description contains")
        search.fill("message.max.bytes")
        row = page.locator(".settings li").filter(
            has=page.get_by_text("message.max.bytes", exact=True)
        )
        press(row, "Edit")
        dialog = dialog_of(page)
        dialog.get_by_label("Value").fill(value)
        press(dialog, "Preview")
        check_layout(page, "node-setting", width)
        press(dialog, "Save")
        expect(row.locator(".setting code")).to_have_text(value)
        assert kafka.setting(Resource.BROKER, "1", "message.max.bytes") == value
    for tab in ("Node 1", "All nodes"):
        open_tab(page, tab)
        page.get_by_label("Only changed settings").check()
        press(page.locator(".settings"), "Reset")
        press(dialog_of(page), "Reset to default")
        expect(page.locator(".settings li")).to_have_count(0)
    open_tab(page, "Node 1")
    page.get_by_label("Name or description contains").fill("node.id")
    expect(page.locator(".settings")).to_contain_text("a change needs a restart of the node")
    page.get_by_label("Name or description contains").fill("log.cleaner.threads")
    expect(page.locator(".settings li")).to_have_count(0)
    page.get_by_label("Show settings without effect").check()
    expect(page.locator(".settings li")).to_have_count(1)


def open_tab(page: Page, tab: str) -> None:
    """Open the settings of a node or of all nodes."""
    page.get_by_role("link", name=tab, exact=True).click()
    expect(page.locator("main h1")).to_have_text(f"Settings of {tab.lower()}")


def test_group_offsets_are_reset_after_preview(shown: Shown, kafka: Kafka, width: int) -> None:
    topic, name = f"read-{width}", f"reader-{width}"
    kafka.create(topic, 2, records=9)
    kafka.commit(name, {(topic, 0): 4, (topic, 1): 4})
    page = shown.go(f"#/groups/{name}")
    for to, field, value, again, expected in (
        ("shift", "shift", "-3", "6 records", [1, 1]),
        ("time", "time", "2026-01-01T00:00:00.005", "0 records", [5, 5]),
        ("end", "partitions", "1", "0 records", [5, 9]),
        ("offsets", "offsets", "0=2, 1=3", "9 records", [2, 3]),
        ("start", "partitions", "", "5 records", [0, 0]),
    ):
        dialog = opened(page, "Reset offsets")
        dialog.get_by_label("Reset to").select_option(to)
        dialog.locator(f"input[name={field}]").fill(value)
        if to in ("end", "offsets"):
            dialog.locator("select[name=topic]").select_option(topic)
        press(dialog, "Preview")
        expect(dialog.get_by_role("status")).to_contain_text(f"{again} will be read again")
        expect(dialog).not_to_contain_text("active member")
        check_layout(page, "reset-offsets", width)
        press(dialog, "Reset offsets")
        expect(page.locator("dialog[open]")).to_have_count(0)
        assert [*kafka.offsets(name).values()] == expected


def test_wrong_partition_is_reported_at_its_field(shown: Shown, kafka: Kafka, width: int) -> None:
    name = f"misread-{width}"
    kafka.create(name, records=3)
    kafka.commit(name, {(name, 0): 1})
    dialog = opened(shown.go(f"#/groups/{name}"), "Reset offsets")
    dialog.get_by_label("Reset to").select_option("start")
    dialog.locator("input[name=partitions]").fill("x")
    press(dialog, "Preview")
    expect(dialog.locator("label:has(input[name=partitions]) + [role=alert]")).to_contain_text(
        "not x"
    )
    expect(dialog.locator("input[name=partitions]")).to_be_focused()


def test_offsets_of_group_with_members_cannot_be_reset(
    shown: Shown, kafka: Kafka, width: int
) -> None:
    name = f"busy-{width}"
    kafka.create(name, records=3)
    kafka.commit(name, {(name, 0): 1})
    page = shown.go(f"#/groups/{name}")
    seek = {"dry_run": True, "group": name, "partitions": []}
    problem = "the group has 2 active members; stop them first"
    page.route("**/seek", lambda route: route.fulfill(json=seek | {"problem": problem}))
    dialog = opened(page, "Reset offsets")
    dialog.get_by_label("Reset to").select_option("start")
    press(dialog, "Preview")
    expect(dialog.get_by_role("status")).to_contain_text(problem)
    expect(dialog.get_by_role("button", name="Reset offsets")).to_be_disabled()


def test_group_is_created_and_its_offsets_and_itself_are_deleted(
    shown: Shown, kafka: Kafka, width: int
) -> None:
    topic, name = f"queue-{width}", f"workers-{width}"
    kafka.create(topic, records=9)
    page = shown.go("#/groups")
    dialog = opened(page, "Create group")
    dialog.get_by_label("Group ID").fill(name)
    dialog.get_by_label("Type").select_option("share")
    dialog.get_by_label("Topics").fill(topic)
    dialog.get_by_label("Start at").select_option("offset")
    dialog.get_by_label("Offset", exact=True).fill("3")
    check_layout(page, "create-group", width)
    press(dialog, "Create group")
    expect(page.locator("main h1")).to_have_text(name)
    assert kafka.groups()[name] == "share"
    dialog = opened(page, "Delete offsets")
    press(dialog, "Preview")
    expect(dialog.locator("tbody")).to_contain_text(topic)
    check_layout(page, "delete-offsets", width)
    press(dialog, "Delete offsets")
    expect(page.locator("main")).to_contain_text("The group has no committed offsets")
    dialog = opened(page, "Delete group")
    expect(dialog.locator(".facts")).to_contain_text("TypeShare")
    press(dialog, "Delete group")
    expect(page.locator("main h1")).to_have_text("Groups")
    assert name not in kafka.groups()


def test_selected_groups_are_deleted_after_preview(shown: Shown, kafka: Kafka, width: int) -> None:
    topic, names = f"left-{width}", [f"leavers-{width}-{n}" for n in range(3)]
    kafka.create(topic, records=3)
    for name in names:
        kafka.commit(name, {(topic, 0): 1})
    page = shown.go(f"#/groups?search=leavers-{width}")
    for name in names[:2]:
        page.get_by_label(f"Select {name}").check()
    press(page.locator("main"), "Delete (2)")
    dialog = dialog_of(page)
    expect(dialog.get_by_role("region", name="Groups to delete")).to_contain_text(names[1])
    check_layout(page, "delete-groups", width)
    press(dialog, "Delete groups")
    expect(page.locator("main tbody")).not_to_contain_text(names[0])
    assert kafka.groups().keys() & set(names) == {names[2]}


def test_hostile_names_in_dialogs_are_shown_as_text(shown: Shown, kafka: Kafka, width: int) -> None:
    topic, name = f"evil-{width}", f"{EVIL}{width}"
    kafka.create(topic, records=3)
    kafka.commit(name, {(topic, 0): 1})
    page = shown.go(f"#/groups/{quote(name, safe='')}")
    for button in ("Reset offsets", "Delete offsets", "Delete group"):
        dialog = opened(page, button)
        expect(dialog.locator("h1")).to_contain_text("onerror")
        expect(dialog.locator("h1")).to_contain_text("\\u001b")
        check_layout(page, "hostile", width)
        press(dialog, "Cancel")
    assert page.locator("main img, dialog img").count() == 0
    assert page.title() != "broken"
    dialog = opened(page, "Delete group")
    press(dialog, "Delete group")
    expect(page.locator("main h1")).to_have_text("Groups")
    assert name not in kafka.groups()


def test_group_setting_is_edited(shown: Shown, kafka: Kafka, width: int) -> None:
    topic, name = f"shared-{width}", f"sharers-{width}"
    kafka.create(topic)
    kafka.run(lambda cluster: alter_share_offsets(cluster, name, {(topic, 0): 0}))
    page = shown.go(f"#/groups/{name}")
    page.get_by_role("link", name="Settings", exact=True).click()
    rows = page.locator(".settings li")
    expect(rows.first).to_contain_text("errors.deadletterqueue")
    expect(rows.filter(has_text="streams.num.standby")).to_have_count(0)
    row = rows.filter(has=page.get_by_text("share.isolation.level", exact=True))
    press(row, "Edit")
    dialog = dialog_of(page)
    dialog.get_by_label("Value").select_option("read_committed")
    press(dialog, "Preview")
    press(dialog, "Save")
    expect(row.locator(".setting code")).to_have_text("read_committed")
    assert kafka.setting(Resource.GROUP, name, "share.isolation.level") == "read_committed"


def test_member_is_removed_and_group_with_members_is_kept(
    shown: Shown, kafka: Kafka, width: int
) -> None:
    topic, name = f"joined-{width}", f"joiners-{width}"
    kafka.create(topic, records=3)

    async def join(cluster: ClusterClient) -> None:
        await Member(cluster, name, [topic]).join()

    kafka.run(join)
    kafka_offsets = {(topic, 0): 1}
    page = shown.go(f"#/groups/{name}")
    dialog = opened(page, "Delete group")
    expect(dialog.locator(".bad").first).to_contain_text("the group has 1 active member")
    expect(dialog.get_by_role("button", name="Delete group")).to_be_disabled()
    press(dialog, "Cancel")
    press(page.get_by_role("region", name="Members"), "Remove")
    dialog = dialog_of(page)
    expect(dialog.locator(".facts")).to_contain_text("Assigned partitions1")
    check_layout(page, "remove-member", width)
    press(dialog, "Remove member")
    expect(page.locator("main .cards")).to_contain_text("Empty")
    kafka.commit(name, kafka_offsets)
    assert kafka.offsets(name) == kafka_offsets


def test_viewer_without_permissions_is_offered_no_changes(
    shown: Shown, kafka: Kafka, width: int
) -> None:
    topic, group = f"guarded-{width}", f"guards-{width}"
    kafka.create(topic)
    kafka.commit(group, {(topic, 0): 0})
    shown.page.route("**/api/v1/**", _without_permissions)
    for fragment in (
        "#/topics",
        f"#/topics/{topic}/partitions",
        f"#/topics/{topic}/config",
        "#/groups",
        f"#/groups/{group}",
        f"#/groups/{group}/settings",
        "#/brokers/1",
    ):
        page = shown.go(fragment)
        names = page.locator("main button:visible").all_inner_texts()
        changes = ("Create", "Delete", "Edit", "Reset", "Add", "Remove")
        assert [each for each in names if each.startswith(changes)] == [], fragment
    expect(page.get_by_role("link", name="Produce")).to_have_count(0)


def _without_permissions(route: Any) -> None:
    """Respond as the console does for a viewer who may only read."""

    def reduced(value: Any) -> Any:
        if isinstance(value, dict):
            return {k: [] if k == "may" else reduced(each) for k, each in value.items()}
        return [reduced(each) for each in value] if isinstance(value, list) else value

    route.fulfill(json=reduced(route.fetch().json()))


@pytest.mark.parametrize("theme", THEMES)
def test_axe_finds_no_serious_violation_in_dialogs(
    browser: Browser, server: dict[str, Any], kafka: Kafka, theme: Any, width: int
) -> None:
    topic, group = f"axe-{theme}-{width}", f"axes-{theme}-{width}"
    kafka.create(topic, 2, records=5)
    kafka.commit(group, {(topic, 0): 1})
    viewport: Any = {"width": width, "height": WIDTHS[width]}
    found = []
    with browser.new_context(bypass_csp=True, color_scheme=theme, viewport=viewport) as context:
        shown_page = Shown(context.new_page(), server["http"])
        for fragment, button in (
            ("#/topics", "Create topic"),
            (f"#/topics/{topic}/partitions", "Delete topic"),
            (f"#/topics/{topic}/partitions", "Add partitions"),
            (f"#/topics/{topic}/partitions", "Delete records"),
            (f"#/topics/{topic}/config", "Edit"),
            ("#/groups", "Create group"),
            (f"#/groups/{group}", "Reset offsets"),
            (f"#/groups/{group}", "Delete offsets"),
            (f"#/groups/{group}", "Delete group"),
            (f"#/groups/{group}/settings", "Edit"),
            ("#/brokers/1", "Edit"),
            ("#/brokers/default", "Edit"),
        ):
            shown_page.page.goto("about:blank")
            page = shown_page.go(fragment)
            page.get_by_role("button", name=button, exact=True).first.click()
            dialog = dialog_of(page)
            preview = dialog.get_by_role("button", name="Preview")
            if preview.count():
                preview.click()
            page.evaluate(Path(AXE).read_text())
            broken = page.evaluate("axe.run().then((it) => it.violations)")
            found += [(fragment, each["id"]) for each in broken if each["impact"] in SERIOUS]
            page.keyboard.press("Escape")
    assert found == []
