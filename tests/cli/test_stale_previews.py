"""Changes of the cluster between the preview of a command and the change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import pytest
import trio

from kbroker.broker import Broker
from kbroker.cli.confirmation import Change, Preview
from kbroker.cli.profiles import FILE_VARIABLE, read_profiles, write_profiles
from kbroker.client.acls import EVERY_ACL, add_acls, describe_acls
from kbroker.client.cluster import ClusterClient, open_cluster
from kbroker.client.endpoint import Endpoint
from kbroker.client.groups import commit_offsets, committed_offsets
from kbroker.client.topics import NewTopic, create_topics, delete_topics
from kbroker.client.transactions import describe_transaction, fence_producer
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.transactions import AddPartitionsToTxnRequest
from kbroker.security.acls import AclOperation

from ..brokers import started
from ..commands import Cli, invoke
from ..wire import connected, create_topic
from .registries import Registered
from .test_cluster_moves import make, replica_lists
from .test_transactions import begin

FIELD = {"name": "f", "type": "string", "default": ""}
Work = Callable[[ClusterClient], Awaitable[object]]


def meanwhile(monkeypatch: pytest.MonkeyPatch, broker: Broker, work: Work) -> None:
    """Run `work` while commands of another thread ask their question, which is answered with yes."""

    async def on_cluster() -> None:
        async with open_cluster(
            Endpoint.parse_bootstrap(broker.bootstrap_servers), "other"
        ) as cluster:
            await work(cluster)

    def confirm(_: Change, __: Preview) -> bool:
        trio.from_thread.run(on_cluster)
        return True

    monkeypatch.setattr(Change, "confirm", confirm)


async def replace_topic(cluster: ClusterClient) -> None:
    await delete_topics(cluster, ["t"])
    await create_topics(cluster, [NewTopic("t", 1)])


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("topic delete t", "t: the topic was deleted in the meantime; if a new one has this name"),
        ("topic trim t --before end", "topic 't' was deleted and created again"),
        ("group seek g --to end", "topic 't' was deleted and created again"),
    ],
)
async def test_topic_that_was_created_again_is_kept(
    broker: Broker, cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str, message: str
) -> None:
    await cli("topic", "create", "t", "-p", "1")
    await cli("topic", "produce", "t", "x", "y")
    await cli("group", "seek", "--yes", "g", "--to", "1", "--topic", "t")
    before = broker.running().cluster.topics["t"].id
    meanwhile(monkeypatch, broker, replace_topic)
    output = await cli(*command.split(), status=1)
    assert message in output.stderr
    assert broker.running().cluster.topics["t"].id != before


async def test_topic_delete_if_exists_accepts_concurrent_deletion(
    broker: Broker, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cli("topic", "create", "t")
    meanwhile(monkeypatch, broker, lambda cluster: delete_topics(cluster, ["t"]))
    await cli("topic", "delete", "t", "--if-exists")


async def test_offset_delete_keeps_offsets_that_were_not_shown(
    broker: Broker, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    await cli("topic", "create", "t", "-p", "2")
    await cli("group", "seek", "--yes", "g", "--to", "start", "--topic", "t:0")

    async def commit_more(cluster: ClusterClient) -> None:
        await commit_offsets(cluster, "g", {("t", 1): 0})

    meanwhile(monkeypatch, broker, commit_more)
    output = await cli("group", "offset-delete", "g", "--topic", "t")
    assert output.stdout == "t-0: deleted\n"
    async with open_cluster(Endpoint.parse_bootstrap(broker.bootstrap_servers), "test") as cluster:
        assert await committed_offsets(cluster, "g") == {("t", 1): 0}


async def test_acl_remove_keeps_acls_that_were_not_shown(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    add = ("security", "acl", "add", "--principal", "alice", "--topic", "t", "--operation")
    async with started(
        super_users="User:ANONYMOUS",
        authorizer_class_name="org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    ) as broker:
        bootstrap = ("-b", broker.bootstrap_servers)
        await cli(*add, "read", *bootstrap)

        async def add_more(cluster: ClusterClient) -> None:
            (shown,) = await describe_acls(cluster, [EVERY_ACL])
            await add_acls(cluster, [replace(shown, operation=AclOperation.WRITE)])

        meanwhile(monkeypatch, broker, add_more)
        removed = await cli("security", "acl", "remove", "--principal", "alice", *bootstrap)
        assert "read" in removed.stdout
        assert "write" not in removed.stdout
        kept = await cli("security", "acl", "list", *bootstrap)
        assert "write" in kept.stdout


async def test_txn_abort_keeps_transaction_that_began_later(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started() as broker, connected(broker.endpoint) as wire:
        await begin(wire, "payments", await create_topic(wire, "t"))

        async def begin_again(cluster: ClusterClient) -> None:
            await fence_producer(cluster, "payments")
            found = await describe_transaction(cluster, "payments")
            add = AddPartitionsToTxnRequest(
                v3_and_below_transactional_id=found.id,
                v3_and_below_producer_id=found.producer_id,
                v3_and_below_producer_epoch=found.producer_epoch,
                v3_and_below_topics=[AddPartitionsToTxnRequest.Topic(name="t", partitions=[0])],
            )
            async with connected(broker.endpoint) as other:
                await other.ask(ApiKey.ADD_PARTITIONS_TO_TXN, 3, add)

        meanwhile(monkeypatch, broker, begin_again)
        abort = ("cluster", "txn", "abort", "payments", "-b", broker.bootstrap_servers)
        output = await cli(*abort, status=1)
        assert "payments: another transaction has begun in the meantime" in output.stderr
        async with open_cluster(
            Endpoint.parse_bootstrap(broker.bootstrap_servers), "test"
        ) as cluster:
            assert (await describe_transaction(cluster, "payments")).state == "Ongoing"


async def test_drain_keeps_replicas_if_another_broker_stops_after_preview(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with started(nodes=3) as broker:
        await make(broker, "orders", 2, 2)

        async def stop(_: ClusterClient) -> None:
            await broker.local_node(2).stop()

        meanwhile(monkeypatch, broker, stop)
        output = await cli("cluster", "drain", "3", "-b", broker.bootstrap_servers, status=1)
        assert "too few other brokers for all replicas of orders" in output.stderr
        assert "`kbroker cluster drain 3 --undo`" in output.stderr
        assert all(len(nodes) == 2 for nodes in replica_lists(broker))


@pytest.fixture
def profiles(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write profiles `a` and `b`; `a` is selected."""
    monkeypatch.setenv(FILE_VARIABLE, str(tmp_path / "profiles.toml"))
    write_profiles("a", {"a": {"brokers": "one:1"}, "b": {"brokers": "two:2"}})


def add_profile(name: str) -> None:
    current, known = read_profiles()
    write_profiles(current, known | {name: {"brokers": "three:3"}})


@pytest.mark.usefixtures("profiles")
def test_profile_delete_keeps_profile_that_was_added_during_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def confirm(_: Change, __: Preview) -> bool:
        add_profile("c")
        return True

    monkeypatch.setattr(Change, "confirm", confirm)
    invoke("profile", "delete", "b")
    assert [*read_profiles()[1]] == ["a", "c"]


@pytest.mark.usefixtures("profiles")
@pytest.mark.parametrize(("changed", "status"), [("c", 0), ("a", 1)])
def test_profile_edit_keeps_changes_that_were_made_while_editor_was_open(
    monkeypatch: pytest.MonkeyPatch, changed: str, status: int
) -> None:
    def edit(*_: object, **__: object) -> str:
        add_profile(changed)
        return 'brokers = "four:4"'

    monkeypatch.setattr("click.edit", edit)
    output = invoke("profile", "edit", "a", status=status)
    known = read_profiles()[1]
    assert known[changed] == {"brokers": "three:3"}
    if status:
        assert "profile 'a' was changed or deleted in the meantime" in output.stderr
    else:
        assert known["a"] == {"brokers": "four:4"}


async def test_registry_delete_keeps_subject_with_version_that_was_not_shown(
    registered: Registered, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = ({"type": "record", "name": "r", "fields": each} for each in ([], [FIELD]))
    await registered.registry.register("s", first)

    def confirm(_: Change, __: Preview) -> bool:
        trio.from_thread.run(registered.registry.register, "s", second)
        return True

    monkeypatch.setattr(Change, "confirm", confirm)
    delete = ("registry", "delete", "s", "--registry", registered.url)
    output = await registered.cli(*delete, status=1)
    assert "s has other versions than shown; nothing was deleted" in output.stderr
    assert await registered.registry.get("/subjects/s/versions") == [1, 2]
