"""Users, ACLs, quotas, tokens, schemas, replicas and transactions in the console. See soak.toml.

Each task is done in a wide and in a narrow window. Needs Debian's chromium, playwright, and
axe-core below .work/axe. Screenshots are written to .work/console.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

import pytest
import trio
from playwright.sync_api import Browser, Locator, Page, Route, expect

from kbroker.client.acls import add_acls, describe_acls
from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.credentials import Credentials, Security
from kbroker.client.delegation_tokens import create_delegation_token
from kbroker.client.endpoint import Endpoint
from kbroker.client.errors import check
from kbroker.client.quotas import describe_quotas
from kbroker.client.scram_users import describe_scram_users, set_scram_password
from kbroker.client.topics import NewTopic, by_leader, create_topics
from kbroker.client.transactions import list_transactions
from kbroker.protocol.messages.produce import ProduceRequest
from kbroker.protocol.messages.transactions import (
    AddPartitionsToTxnRequest,
    InitProducerIdRequest,
)
from kbroker.security.acls import (
    Acl,
    AclFilter,
    AclOperation,
    AclPermission,
    AclResourceType,
    Pattern,
    PatternType,
)

from ..cli.test_serve import serving, wait_for
from ..security.tokens import KEY
from ..wire import sequenced
from .browser import chromium
from .long_console_pages import AXE, EVIL, PICTURES, SERIOUS, THEMES, Shown
from .secured import AUTHORIZER

WIDTHS = {1440: 900, 390: 844}
LOGIN = "org.apache.kafka.common.security.scram.ScramLoginModule required "
USERS = LOGIN + 'username="admin" password="hush" user_admin="hush" user_alice="secret";'
LISTENER = "listener.name.sasl_plaintext.scram-sha-256"
SETTINGS = {
    "listeners": "SASL_PLAINTEXT://127.0.0.1:0",
    "security.inter.broker.protocol": "SASL_PLAINTEXT",
    "sasl.mechanism.inter.broker.protocol": "SCRAM-SHA-256",
    "sasl.enabled.mechanisms": "SCRAM-SHA-256",
    f"{LISTENER}.sasl.jaas.config": USERS,
    "authorizer.class.name": AUTHORIZER,
    "super.users": "User:admin",
    "delegation.token.secret.key": KEY,
    "auto.leader.rebalance.enable": "false",
    # Transactions hang only if brokers do not verify their partitions.
    "transaction.partition.verification.enable": "false",
}
PAGES = {
    "users": "#/security",
    "acls": "#/security/acls",
    "quotas": "#/security/quotas",
    "tokens": "#/security/tokens",
    "schemas": "#/schemas",
    "subject": "#/schemas/shown-value?from=1&to=2",
    "placement": "#/cluster",
    "transactions": "#/storage",
}
FIRST = {"type": "record", "name": "Order", "fields": [{"name": "country", "type": "string"}]}
NOTE = {"name": "note", "type": "string", "default": ""}
SECOND = FIRST | {"fields": [*FIRST["fields"], NOTE]}
INCOMPATIBLE = FIRST | {"fields": [*FIRST["fields"], {"name": "size", "type": "int"}]}
T = TypeVar("T")


class Kafka:
    """The brokers as their administrator sees them, for preparations and checks."""

    def __init__(self, address: str) -> None:
        self._endpoint = Endpoint.parse(address)

    def run(self, work: Callable[[ClusterClient], Awaitable[T]]) -> T:
        security = Security(None, Credentials("SCRAM-SHA-256", "admin", "hush"))

        async def main() -> T:
            async with open_cluster([self._endpoint], security=security) as cluster:
                return await work(cluster)

        return trio.run(main)

    def create(self, name: str, factor: int = 1) -> None:
        self.run(lambda cluster: create_topics(cluster, [NewTopic(name, 1, factor)]))

    def replicas(self, name: str) -> list[int]:
        return list(self._partition(name).replica_nodes)

    def leader(self, name: str) -> int:
        return int(self._partition(name).leader_id)

    def _partition(self, name: str) -> Any:
        (topic,) = self.run(lambda cluster: cluster.topics([name]))
        return topic.partitions[0]

    def users(self) -> dict[str, list[str]]:
        found = self.run(describe_scram_users)
        return {each.name: [*each.iterations] for each in found}

    def acls(self, principal: str) -> list[Acl]:
        wanted = AclFilter(
            AclResourceType.ANY,
            None,
            PatternType.ANY,
            principal,
            None,
            AclOperation.ANY,
            AclPermission.ANY,
        )
        return self.run(lambda cluster: describe_acls(cluster, [wanted]))

    def quotas(self, user: str) -> dict[str, float]:
        found = self.run(lambda cluster: describe_quotas(cluster, {"user": user}))
        return dict(found[0].values) if found else {}

    def allow(self, principal: str, *operations: AclOperation, topic: str) -> None:
        pattern = Pattern(AclResourceType.TOPIC, PatternType.LITERAL, topic)
        acls = [Acl(pattern, principal, "*", each, AclPermission.ALLOW) for each in operations]
        self.run(lambda cluster: add_acls(cluster, acls))

    def begin(self, name: str, topic: str, *, hangs: bool = False) -> None:
        """Write a transactional record to partition 0 of a topic.

        The transaction hangs if the partition is not added to it.
        """

        async def work(cluster: ClusterClient) -> None:
            coordinator = await cluster.coordinator(name, 1)
            init = InitProducerIdRequest(transactional_id=name, transaction_timeout_ms=600_000)
            given = await coordinator.ask(init, newest=5)
            check(given.error_code)
            add = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=name,
                v3_and_below_producer_id=given.producer_id,
                v3_and_below_producer_epoch=given.producer_epoch,
                v3_and_below_topics=[AddPartitionsToTxnRequest.Topic(name=topic, partitions=[0])],
            )
            if not hangs:
                added = await coordinator.ask(add, newest=3)
                ((row,),) = (
                    each.results_by_partition for each in added.results_by_topic_v3_and_below
                )
                check(row.partition_error_code)
            data = sequenced(given.producer_id, 0, transactional=True)
            partition = ProduceRequest.Partition(index=0, records=data)
            produce = ProduceRequest(
                transactional_id=name,
                acks=-1,
                timeout_ms=30_000,
                topic_data=[ProduceRequest.Topic(name=topic, partition_data=[partition])],
            )
            ((leader, _),) = (await by_leader(cluster, [(topic, 0)])).items()
            written = await (await cluster.node(leader)).ask(produce, newest=9)
            check(written.responses[0].partition_responses[0].error_code)

        self.run(work)

    def state(self, name: str) -> str:
        found = self.run(list_transactions)
        return next(each.state for each in found if each.id == name)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    directory = tmp_path_factory.mktemp("access")
    port_file, config = directory / "ready.json", directory / "server.properties"
    config.write_text("".join(f"{name}={value}\n" for name, value in SETTINGS.items()))
    ports = ("--port", "0", "--http-port", "0", "--registry-port", "0")
    flags = ("--memory", "--nodes", "3", "--config", str(config), *ports)
    with serving(*flags, "--port-file", str(port_file)):
        ready: dict[str, Any] = json.loads(wait_for(port_file))
        yield ready


@pytest.fixture(scope="module")
def kafka(server: dict[str, Any]) -> Kafka:
    found = Kafka(server["bootstrap_servers"].split(",")[0])
    found.run(lambda cluster: set_scram_password(cluster, EVIL.replace("\x1b", ""), "x"))
    found.run(lambda cluster: create_delegation_token(cluster))
    found.allow("User:shown", AclOperation.READ, topic="shown")
    return found


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with chromium() as found:
        yield found


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest) -> int:
    number: int = request.param
    return number


def open_as(browser: Browser, base: str, width: int, user: str, password: str) -> Shown:
    context = browser.new_context(
        viewport={"width": width, "height": WIDTHS[width]},
        http_credentials={"username": user, "password": password},
        bypass_csp=False,
    )
    return Shown(context.new_page(), base)


@pytest.fixture
def shown(browser: Browser, server: dict[str, Any], kafka: Kafka, width: int) -> Iterator[Shown]:
    page = open_as(browser, server["http"], width, "admin", "hush")
    yield page
    assert page.errors == []
    assert page.foreign_requests == []
    page.page.context.close()


def press(place: Page | Locator, name: str) -> None:
    place.get_by_role("button", name=name, exact=True).click()


def dialog_of(page: Page) -> Locator:
    dialog = page.locator("dialog[open]")
    dialog.wait_for(state="visible")
    return dialog


def opened(page: Page, name: str) -> Locator:
    """Open a dialog by its button."""
    press(page.locator("main"), name)
    return dialog_of(page)


def confirmed(page: Page, dialog: Locator, name: str, picture: str, width: int) -> None:
    """Press the button of a dialog, and wait until it is closed without an error."""
    button = dialog.get_by_role("button", name=name, exact=True)
    expect(button).to_be_enabled()
    check_layout(page, picture, width)
    button.click()
    expect(page.locator("dialog[open]", has_text=name)).to_have_count(0)


def check_layout(page: Page, picture: str, width: int) -> None:
    """Check that the page and its dialog are not wider than the window."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=PICTURES / f"access-{picture}-{width}.png")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    for dialog in page.locator("dialog[open]").all():
        assert dialog.evaluate("each => each.scrollWidth - each.clientWidth") <= 0


def until(page: Page, condition: Callable[[], bool]) -> None:
    """Wait until the brokers have reached a state."""
    for _ in range(600):
        if condition():
            return
        page.wait_for_timeout(50)
    raise AssertionError("the brokers did not reach the state")


def register(page: Page, subject: str, schema: object) -> None:
    """Register a schema by the API of the console."""
    page.evaluate(
        """async ([subject, schema]) => {
          const { token } = await (await fetch("/api/v1/session")).json();
          const made = await fetch(`/api/v1/schemas/${encodeURIComponent(subject)}/register`, {
            method: "POST", headers: { "x-kbroker-token": token }, body: JSON.stringify({ schema }),
          });
          if (!made.ok) throw new Error(await made.text());
        }""",
        [subject, json.dumps(schema)],
    )


def test_user_is_created_changed_and_deleted(shown: Shown, kafka: Kafka, width: int) -> None:
    page, name = shown.go("#/security"), f"bob-{width}"
    dialog = opened(page, "Create user")
    dialog.get_by_label("User name").fill(name)
    dialog.get_by_label("Password", exact=True).fill("first")
    dialog.get_by_label("Repeat the password").fill("other")
    press(dialog, "Create user")
    expect(dialog.get_by_role("alert")).to_have_text("The passwords differ.")
    dialog.get_by_label("Repeat the password").fill("first")
    confirmed(page, dialog, "Create user", "create-user", width)
    expect(page.get_by_role("row", name=name)).to_contain_text("SCRAM-SHA-256")
    dialog = opened(page, f"Change password {name}")
    for label in ("Password", "Repeat the password"):
        dialog.get_by_label(label, exact=True).fill("second")
    dialog.get_by_label("Mechanism").select_option("SCRAM-SHA-512")
    confirmed(page, dialog, "Change password", "change-password", width)
    assert kafka.users()[name] == ["SCRAM-SHA-256", "SCRAM-SHA-512"]
    dialog = opened(page, f"Delete {name}")
    expect(dialog.locator(".preview")).to_contain_text("SCRAM-SHA-256, SCRAM-SHA-512")
    confirmed(page, dialog, "Delete user", "delete-user", width)
    expect(page.get_by_role("row", name=name)).to_have_count(0)
    assert name not in kafka.users()


def test_acls_are_added_explained_and_removed(shown: Shown, kafka: Kafka, width: int) -> None:
    principal = f"User:carol-{width}"
    page = shown.go(f"#/security/acls?principal={principal}")
    dialog = opened(page, "Allow a consumer")
    dialog.get_by_label("Principal").fill(principal)
    dialog.get_by_label("Topic").fill("orders")
    dialog.get_by_label("Group").fill("billing")
    add = dialog.get_by_role("button", name="Add", exact=True)
    expect(add).to_be_disabled()
    press(dialog, "Preview")
    expect(dialog.locator(".preview tbody tr")).to_have_count(3)
    assert kafka.acls(principal) == []
    confirmed(page, dialog, "Add", "allow-consumer", width)
    expect(page.get_by_role("region", name="ACLs").locator("tbody tr")).to_have_count(3)
    assert len(kafka.acls(principal)) == 3

    form = page.locator("section", has_text="Explain a decision")
    form.get_by_label("Principal").fill(principal)
    form.get_by_label("Operation").select_option("write")
    form.get_by_label("Resource", exact=True).fill("orders")
    press(form, "Explain")
    expect(form.get_by_role("status")).to_contain_text("Denied")
    dialog = opened(page, "Add this ACL")
    press(dialog, "Preview")
    confirmed(page, dialog, "Add", "add-acl", width)
    press(form, "Explain")
    expect(form.get_by_role("status")).to_contain_text("Allowed")

    page.get_by_label("Select all rows").check()
    press(page, "Remove (4)")
    dialog = dialog_of(page)
    expect(dialog.locator(".preview tbody tr")).to_have_count(4)
    confirmed(page, dialog, "Remove", "remove-acls", width)
    expect(page.get_by_role("region", name="ACLs")).to_contain_text("No entries")
    assert kafka.acls(principal) == []


def test_quota_is_set_changed_and_removed(shown: Shown, kafka: Kafka, width: int) -> None:
    page, user = shown.go("#/security/quotas"), f"dave-{width}"
    dialog = opened(page, "Set quota")
    dialog.get_by_label("producer_byte_rate").fill("1000")
    press(dialog, "Preview")
    expect(dialog.get_by_role("alert")).to_contain_text("name the quota's entity")
    dialog.get_by_label("User", exact=True).fill(user)
    press(dialog, "Preview")
    expect(dialog.locator(".preview")).to_contain_text("1,000")
    confirmed(page, dialog, "Set", "set-quota", width)
    assert kafka.quotas(user) == {"producer_byte_rate": 1000}
    dialog = opened(page, f"Change user {user}")
    dialog.get_by_label("producer_byte_rate").fill("")
    dialog.get_by_label("request_percentage").fill("50")
    press(dialog, "Preview")
    expect(dialog.locator(".preview")).to_contain_text("removed")
    confirmed(page, dialog, "Set", "change-quota", width)
    assert kafka.quotas(user) == {"request_percentage": 50}
    dialog = opened(page, f"Remove user {user}")
    confirmed(page, dialog, "Remove", "remove-quota", width)
    assert kafka.quotas(user) == {}
    shown.errors = [each for each in shown.errors if "400" not in each]


def test_token_is_created_renewed_and_expired(shown: Shown, kafka: Kafka, width: int) -> None:
    page = shown.go("#/security/tokens")
    dialog = opened(page, "Create token")
    dialog.get_by_label("Renewers").fill("User:bob")
    dialog.get_by_label("Maximum lifetime in hours").fill("2")
    press(dialog, "Create token")
    secret = page.locator("dialog[open]", has_text="Token created")
    expect(secret).to_contain_text("is not shown again")
    name, hmac = secret.locator("code").all_inner_texts()
    expect(secret.get_by_role("button", name="Cancel")).to_have_count(0)
    confirmed(page, secret, "Done", "token-created", width)
    row = page.get_by_role("row", name=name)
    expect(row).to_contain_text("User:bob")
    assert hmac not in page.content()
    dialog = opened(page, f"Renew {name}")
    dialog.get_by_label("Valid for hours from now").fill("1")
    confirmed(page, dialog, "Renew", "renew-token", width)
    dialog = opened(page, f"Expire {name}")
    expect(dialog.locator(".preview")).to_contain_text("User:admin")
    confirmed(page, dialog, "Expire", "expire-token", width)
    expect(row).to_have_count(0)


def test_schema_is_registered_compared_and_deleted(shown: Shown, kafka: Kafka, width: int) -> None:
    page, subject = shown.go("#/schemas"), f"orders-{width}-value"
    dialog = opened(page, "Register schema")
    dialog.get_by_label("Subject", exact=True).fill(subject)
    dialog.locator("textarea[name=schema]").fill(json.dumps(FIRST))
    press(dialog, "Preview")
    expect(dialog.locator(".preview")).to_contain_text("valid and compatible (BACKWARD)")
    confirmed(page, dialog, "Register", "register-schema", width)
    page.get_by_role("link", name=subject).click()
    expect(page.locator("main pre").first).to_contain_text('"name": "country"')

    dialog = opened(page, "Register version")
    dialog.locator("textarea[name=schema]").fill(json.dumps(INCOMPATIBLE))
    press(dialog, "Preview")
    shown_reason = "incompatible with version 1 (BACKWARD):new field size has no default: add one"
    expect(dialog.locator(".preview")).to_contain_text(shown_reason)
    expect(dialog.get_by_role("button", name="Register", exact=True)).to_be_disabled()
    dialog.locator("textarea[name=schema]").fill(json.dumps(SECOND))
    press(dialog, "Preview")
    confirmed(page, dialog, "Register", "register-version", width)
    expect(page.get_by_role("heading", name="Version 2")).to_be_visible()
    press(page, "Compare")
    expect(page.locator("pre .good").first).to_contain_text("+")
    expect(page.locator("pre", has_text='+       "name": "note"')).to_be_visible()
    check_layout(page, "compare", width)

    dialog = opened(page, "Change level")
    dialog.get_by_label("Level").select_option("FULL")
    confirmed(page, dialog, "Change level", "change-level", width)
    expect(page.locator(".cards")).to_contain_text("FULL")
    dialog = opened(page, "Delete version 1")
    expect(dialog.locator(".preview")).to_contain_text("can still decode")
    confirmed(page, dialog, "Delete", "delete-version", width)
    dialog = opened(page, "Delete permanently version 1")
    dialog.get_by_label("to confirm").fill(subject)
    confirmed(page, dialog, "Delete permanently", "delete-permanently", width)
    expect(page.locator("main")).not_to_contain_text("deleted")
    dialog = opened(page, "Delete subject")
    confirmed(page, dialog, "Delete", "delete-subject", width)
    expect(page.locator("main h1")).to_have_text("Schemas")
    expect(page.get_by_role("link", name=subject)).to_have_count(0)


def test_replicas_are_moved_and_leaders_elected(shown: Shown, kafka: Kafka, width: int) -> None:
    name = f"moved-{width}"
    kafka.create(name, factor=2)
    first, second = kafka.replicas(name)
    (other,) = {1, 2, 3} - {first, second}
    page = shown.go(f"#/cluster?search={name}")
    rows = page.get_by_role("region", name="Partitions", exact=True).locator("tbody tr")
    expect(rows).to_have_count(1)
    dialog = opened(page, f"Move replicas {name}-0")
    dialog.get_by_label("Replicas").fill(f"{first}, 99")
    press(dialog, "Preview")
    expect(dialog.get_by_role("alert")).to_contain_text("broker 99 does not run")
    dialog.get_by_label("Replicas").fill(f"{first}, {other}")
    press(dialog, "Preview")
    expect(dialog.locator(".preview")).to_contain_text(f"Copied to{other}")
    assert kafka.replicas(name) == [first, second]
    confirmed(page, dialog, "Move", "move-replicas", width)
    until(page, lambda: kafka.replicas(name) == [first, other])
    page.reload()
    expect(rows).to_contain_text(f"{first}, {other}")
    dialog = opened(page, f"Elect leader {name}-0")
    dialog.get_by_label("Leader").select_option(str(other))
    press(dialog, "Preview")
    expect(dialog.locator(".preview tbody tr")).to_contain_text(f"{first}")
    confirmed(page, dialog, "Elect", "elect-leader", width)
    until(page, lambda: kafka.leader(name) == other)
    shown.errors = [each for each in shown.errors if "400" not in each]


def test_topic_is_moved_to_nodes_after_the_preview(shown: Shown, kafka: Kafka, width: int) -> None:
    name = f"topic-moved-{width}"
    kafka.create(name, factor=2)
    first, second = kafka.replicas(name)
    (other,) = {1, 2, 3} - {first, second}
    page = shown.go(f"#/cluster?search={name}")
    dialog = opened(page, "Move topic")
    expect(dialog.get_by_label("Topic")).to_have_value(name)
    dialog.get_by_label("Nodes").fill(str(other))
    press(dialog, "Preview")
    expect(dialog.get_by_role("alert")).to_contain_text("name at least 2 brokers")
    dialog.get_by_label("Nodes").fill(f"{other}, {first}")
    press(dialog, "Preview")
    expect(dialog.locator(".preview")).to_contain_text("1 partition moves.")
    assert kafka.replicas(name) == [first, second]
    confirmed(page, dialog, "Move", "move-topic", width)
    until(page, lambda: set(kafka.replicas(name)) == {first, other})
    shown.errors = [each for each in shown.errors if "400" not in each]


def test_node_is_drained_and_cluster_rebalanced(shown: Shown, kafka: Kafka, width: int) -> None:
    name = f"drained-{width}"
    kafka.create(name, factor=3)
    page = shown.go("#/cluster")
    dialog = opened(page, "Drain node 3")
    press(dialog, "Preview")
    expect(dialog.locator(".preview")).to_contain_text("Partitions that lose a replica")
    expect(dialog.locator(".preview")).to_contain_text(f"{name}-0")
    press(dialog, "Drain")
    expect(dialog.get_by_role("alert")).to_contain_text("too few other brokers for all replicas")
    assert 3 in kafka.replicas(name)
    dialog.get_by_label("Reduce the number of replicas").check()
    press(dialog, "Preview")
    confirmed(page, dialog, "Drain", "drain", width)
    until(page, lambda: 3 not in kafka.replicas(name))
    nodes = page.get_by_role("region", name="Nodes")
    expect(nodes).to_contain_text("drained")
    dialog = opened(page, "Allow partitions node 3")
    confirmed(page, dialog, "Allow partitions", "allow-partitions", width)
    expect(nodes).not_to_contain_text("drained")
    dialog = opened(page, "Rebalance")
    confirmed(page, dialog, "Rebalance", "rebalance", width)
    dialog = opened(page, "Elect preferred leaders")
    confirmed(page, dialog, "Elect", "elect-preferred", width)
    shown.errors = [each for each in shown.errors if "409" not in each]


def test_reassignment_is_cancelled(shown: Shown, kafka: Kafka, width: int) -> None:
    name = f"moving-{width}"
    kafka.create(name)
    posted = []

    def respond_with_reassignment(route: Route) -> None:
        response = route.fetch()
        row = {"topic": name, "partition": 0, "leader": 1, "replicas": [1, 2], "isr": [1]}
        found = response.json() | {"reassignments": [row | {"adding": [2], "removing": [1]}]}
        route.fulfill(response=response, json=found)

    def respond_to_cancellation(route: Route) -> None:
        posted.append(route.request.post_data_json)
        route.fulfill(json={})

    shown.page.route("**/api/v1/cluster", respond_with_reassignment)
    shown.page.route("**/api/v1/placement/cancel", respond_to_cancellation)
    page = shown.go("#/cluster")
    dialog = opened(page, f"Cancel {name}-0")
    expect(dialog.locator(".preview")).to_contain_text("No longer added2")
    assert posted == []
    confirmed(page, dialog, "Cancel reassignment", "cancel-reassignment", width)
    assert posted == [{"topic": name, "partition": 0, "dry_run": False}]
    page.unroute_all(behavior="wait")


def test_open_transaction_is_aborted(shown: Shown, kafka: Kafka, width: int) -> None:
    name = f"payments-{width}"
    kafka.create(name)
    kafka.begin(name, name)
    page = shown.go("#/storage")
    expect(page.get_by_role("row", name=name).first).to_contain_text("Ongoing")
    dialog = opened(page, f"Abort {name}")
    expect(dialog.locator(".preview")).to_contain_text(f"{name}-0")
    confirmed(page, dialog, "Abort", "abort", width)
    assert kafka.state(name) in ("CompleteAbort", "Empty")


def test_hanging_transaction_is_found_and_aborted(shown: Shown, kafka: Kafka, width: int) -> None:
    name = f"hanging-{width}"
    kafka.create(name)
    kafka.begin(name, name, hangs=True)
    page = shown.go("#/storage")
    section = page.locator("section", has_text="unknown to any coordinator").last
    section.get_by_label("No record for minutes").fill("0")
    press(section, "Find")
    found = section.get_by_role("status")
    expect(found).to_contain_text(f"{name}-0")
    dialog = opened(page, f"Abort {name}-0")
    expect(dialog.locator(".preview tbody tr")).to_have_count(1)
    confirmed(page, dialog, "Abort", "abort-hanging", width)
    expect(found).to_contain_text("partitions searched")
    expect(found).not_to_contain_text(f"{name}-0")


def test_viewer_without_permissions_sees_no_actions(
    browser: Browser, server: dict[str, Any], kafka: Kafka, width: int
) -> None:
    operations = (AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS)
    pattern = Pattern(AclResourceType.CLUSTER, PatternType.LITERAL, "kafka-cluster")
    acls = [Acl(pattern, "User:alice", "*", each, AclPermission.ALLOW) for each in operations]
    kafka.run(lambda cluster: add_acls(cluster, acls))
    kafka.allow("User:alice", AclOperation.READ, topic="_schemas")
    alice = open_as(browser, server["http"], width, "alice", "secret")
    for fragment in ("#/security", "#/security/acls", "#/security/quotas", "#/cluster"):
        page = alice.go(fragment)
        buttons = page.locator("main button").all_inner_texts()
        forbidden = ("Create", "Add", "Allow", "Remove", "Set", "Drain", "Move", "Elect", "Delete")
        assert not [each for each in buttons if each.startswith(forbidden)], fragment
    alice.page.context.close()


def test_records_of_open_and_aborted_transactions_are_marked(
    shown: Shown, kafka: Kafka, width: int
) -> None:
    name = f"marked-{width}"
    kafka.create(name)
    kafka.begin(name, name)
    page = shown.go(f"#/topics/{name}/messages")
    expect(page.locator("main tbody .tag.open")).to_have_count(1)
    expect(page.locator("main .states li")).to_contain_text(["open 1 record: the transaction has"])
    check_layout(page, "open-records", width)
    dialog = opened(shown.go("#/storage"), f"Abort {name}")
    confirmed(page, dialog, "Abort", "abort-marked", width)
    page = shown.go(f"#/topics/{name}/messages")
    expect(page.locator("main .states li")).to_contain_text(["aborted 1 record: the transaction"])
    check_layout(page, "aborted-records", width)
    page.locator("main tbody .tag.aborted").click()
    expect(page.locator("#detail")).to_contain_text("aborted: the transaction was aborted")


def test_forbidden_page_keeps_title_and_tabs_and_names_the_permission(
    browser: Browser, server: dict[str, Any], kafka: Kafka, width: int
) -> None:
    kafka.create(f"private-{width}")
    bob = f"bob-{width}"
    kafka.run(lambda cluster: set_scram_password(cluster, bob, "secret"))
    topic, tabs = f"#/topics/private-{width}", ["Messages", "Partitions", "Groups", "Config"]
    security, cluster = ["Users", "ACLs", "Quotas", "Tokens"], "cluster kafka-cluster"
    settings, group = ["All nodes", "Node 1"], ["Overview", "Settings"]
    shown = open_as(browser, server["http"], width, bob, "secret")
    for fragment, title, labels, permission in (
        (f"{topic}/partitions", topic[9:], tabs, f"DESCRIBE topic {topic[9:]}"),
        (f"{topic}/config", topic[9:], tabs, f"DESCRIBE_CONFIGS topic {topic[9:]}"),
        (f"{topic}/produce", topic[9:], [*tabs, "Produce"], f"WRITE topic {topic[9:]}"),
        ("#/groups/g", "g", group, "DESCRIBE group g"),
        ("#/groups/g/settings", "g", group, "DESCRIBE_CONFIGS group g"),
        ("#/brokers/1", "Settings of node 1", settings, f"DESCRIBE_CONFIGS {cluster}"),
        ("#/security", "Security", security, f"DESCRIBE {cluster}"),
        ("#/security/acls", "Security", security, f"DESCRIBE {cluster}"),
        ("#/security/quotas", "Security", security, f"DESCRIBE_CONFIGS {cluster}"),
        ("#/schemas", "Schemas", [], "READ topic _schemas"),
        ("#/schemas/shown-value", "shown-value", [], "READ topic _schemas"),
        ("#/activity", "Activity", [], f"DESCRIBE {cluster}"),
        ("#/cluster", "Cluster", [], f"DESCRIBE {cluster}"),
        ("#/explain/group/g", "Explanation: group g", [], "DESCRIBE group g"),
    ):
        page = shown.open(fragment)
        expect(page.locator("main h1")).to_have_text(title)
        expect(page.locator("main .tabs a")).to_have_text(labels)
        expect(page.locator("main .failed")).to_contain_text(f"{bob} may not {permission}")
    page = shown.go("#/storage")
    expect(page.locator("main")).to_contain_text("Only transactional IDs that")
    expect(page.locator("main .bad")).to_contain_text(f"{bob} may not DESCRIBE {cluster}")
    page = shown.go("#/")
    expect(page.locator("main .health")).to_contain_text(f"{bob} may not DESCRIBE {cluster}")
    expect(page.locator("main .chart")).to_contain_text([*["needs DESCRIBE"] * 5, "may describe"])
    check_layout(page, "few-permissions", width)
    shown.page.context.close()


@pytest.mark.parametrize("theme", THEMES)
def test_pages_are_accessible_and_not_wider_than_window(
    browser: Browser, server: dict[str, Any], kafka: Kafka, width: int, theme: Any
) -> None:
    found = []
    with browser.new_context(
        viewport={"width": width, "height": WIDTHS[width]},
        http_credentials={"username": "admin", "password": "hush"},
        bypass_csp=True,
        color_scheme=theme,
    ) as context:
        shown = Shown(context.new_page(), server["http"])
        page = shown.go("#/schemas")
        for schema in (FIRST, SECOND):
            register(page, "shown-value", schema)
        for name, fragment in PAGES.items():
            page = shown.go(fragment)
            check_layout(page, f"{name}-{theme}", width)
            page.evaluate(AXE.read_text())
            broken = page.evaluate("axe.run().then((it) => it.violations)")
            found += [(name, each["id"]) for each in broken if each["impact"] in SERIOUS]
            assert EVIL.replace("\x1b", "") not in page.title()
        assert found == []
        assert shown.errors == []


def test_overview_shows_snippets_with_security_of_listener(shown: Shown) -> None:
    page = shown.go("#/")
    snippets = page.locator("pre")
    expect(snippets).to_have_count(3)
    for index in range(3):
        for text in ("SASL_PLAINTEXT", "SCRAM-SHA-256", "USER", "PASSWORD"):
            expect(snippets.nth(index)).to_contain_text(text)
