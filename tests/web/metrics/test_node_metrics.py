"""Content of /metrics in both exposition formats."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import trio
import trio.testing

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.groups import HeartbeatRequest
from kbroker.web.metrics.loop_monitor import WAKE_UP_SECONDS, LoopMonitor
from kbroker.web.metrics.node_metrics import OTHERS, SOFTWARE_MAX

from ...loop_latency import STEP_SECONDS_MAX, longest_step
from ...wire import batch, connected, fetch, metadata, produce, until
from ..client import HttpResponse, get, served
from .nodes import Scrape, commit, create, samples_of, scrape

OPEN = "application/openmetrics-text; version=1.0.0"


async def test_kafka_exporter_metric_names_are_exposed() -> None:
    async with served() as (broker, http), connected(broker.endpoint) as wire:
        topic = await create(broker, "orders", 2)
        await produce(wire, topic, batch([b"a", b"b", b"c"]))
        await commit(wire, "billing", "orders", 0, 1)
        metrics = await scrape(http.endpoint_of(1))
    here = {"topic": "orders", "partition": "0"}
    assert metrics("kafka_brokers") == 1
    assert metrics("kafka_broker_info", id="1", address=str(broker.endpoint)) == 1
    assert metrics("kafka_topic_partitions", topic="orders") == 2
    partition = "kafka_topic_partition_"
    assert metrics(f"{partition}current_offset", **here) == 3
    assert metrics(f"{partition}oldest_offset", **here) == 0
    assert metrics(f"{partition}current_offset", topic="orders", partition="1") == 0
    assert metrics(f"{partition}leader", **here) == 1
    assert metrics(f"{partition}replicas", **here) == 1
    assert metrics(f"{partition}in_sync_replica", **here) == 1
    assert metrics(f"{partition}leader_is_preferred", **here) == 1
    assert metrics(f"{partition}under_replicated_partition", **here) == 0
    group = {"consumergroup": "billing", "topic": "orders"}
    assert metrics("kafka_consumergroup_current_offset", partition="0", **group) == 1
    assert metrics("kafka_consumergroup_lag", partition="0", **group) == 2
    assert metrics("kafka_consumergroup_current_offset_sum", **group) == 1
    assert metrics("kafka_consumergroup_lag_sum", **group) == 2
    assert metrics("kafka_consumergroup_members", consumergroup="billing") == 0


async def test_kafka_jmx_metric_names_are_exposed_in_both_spellings() -> None:
    async with served() as (broker, http), connected(broker.endpoint) as wire:
        topic = await create(broker, "orders")
        records = batch([b"a", b"b", b"c"])
        await produce(wire, topic, records)
        await fetch(wire, topic, 0)
        await produce(wire, topic, b"nonsense")
        await produce(wire, topic, records, partition=7)
        metrics = await scrape(http.endpoint_of(1))
    traffic = {
        "messagesin": 3,
        "bytesin": len(records),
        "bytesout": len(records),
        "totalproducerequests": 1,
        "totalfetchrequests": 1,
        "failedproducerequests": 2,
        "failedfetchrequests": 0,
    }
    for metric, value in traffic.items():
        for spelling in (metric, f"{metric}persec"):
            name = f"kafka_server_brokertopicmetrics_{spelling}_total"
            assert metrics(name, topic="orders") == value, name
            assert metrics(name) >= value, name
    here = {"topic": "orders", "partition": "0"}
    assert metrics("kafka_server_replicamanager_partitioncount") == 1
    assert metrics("kafka_server_replicamanager_leadercount") == 1
    assert metrics("kafka_server_replicamanager_underreplicatedpartitions") == 0
    assert metrics("kafka_cluster_partition_underminisr", **here) == 0
    assert metrics("kafka_cluster_partition_atminisr", **here) == 1
    assert metrics("kafka_cluster_partition_replicascount", **here) == 1
    assert metrics("kafka_controller_kafkacontroller_activecontrollercount") == 1
    assert metrics("kafka_controller_kafkacontroller_offlinepartitionscount") == 0
    assert metrics("kafka_controller_controllerstats_uncleanleaderelections_total") == 0
    assert metrics("kafka_controller_controllerstats_uncleanleaderelectionspersec_total") == 0
    assert metrics("kafka_log_log_size", **here) == len(records)
    connections = "kafka_server_socket_server_metrics_connection_count"
    assert metrics(connections, listener="PLAINTEXT", networkProcessor="0") == 1
    assert metrics("kafka_network_requestmetrics_requests_total", request="Produce") == 3
    assert metrics("kafka_network_requestmetrics_totaltimems_total", request="Produce") > 0
    for name in (
        "kafka_network_socketserver_networkprocessoravgidle_percent",
        "kafka_network_socketserver_networkprocessoravgidlepercent",
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidle_percent",
        "kafka_server_kafkarequesthandlerpool_requesthandleravgidlepercent_total",
    ):
        assert 0 <= metrics(name) <= 1
    assert metrics("process_open_fds") > 0
    assert not any(name.startswith("jvm_") for name in metrics.names())


async def test_event_loop_lag_is_recorded(
    autojump_clock: trio.testing.MockClock,
) -> None:
    loop_monitor = LoopMonitor()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(loop_monitor.run)
        await trio.sleep(WAKE_UP_SECONDS / 2)
        autojump_clock.jump(1)
        await trio.testing.wait_all_tasks_blocked()
        nursery.cancel_scope.cancel()
    assert sum(loop_monitor.lateness.counts) == 1
    assert loop_monitor.lateness.seconds == pytest.approx(1 - WAKE_UP_SECONDS / 2)


async def test_kbroker_metric_names_are_exposed(tmp_path: Path) -> None:
    async with served(tmp_path) as (broker, http), connected(broker.endpoint) as wire:
        topic = await create(broker, "orders")
        await produce(wire, topic, batch([b"a"]))
        for _ in range(2):
            await wire.ask(ApiKey.HEARTBEAT, 4, HeartbeatRequest(group_id="g", member_id="m"))
        await until(lambda: any(http._loop_monitor.lateness.counts))
        counts = broker.node.share.dlq.counts
        counts.add(counts.lost, "g", 3)
        counts.add(counts.written, "g", 7)
        counts.add(counts.produced_batches, "g", 2)
        counts.add(counts.failed_batches, "g", 1)
        metrics = await scrape(http.endpoint_of(1))
    assert metrics("kbroker_share_dead_letters_total", group="g", outcome="lost") == 3
    share_groups = "kafka_server_sharegroupmetrics_deadletterqueue"
    for spelling in ("", "_count"):
        assert metrics(f"{share_groups}recordcount{spelling}_total", group="g") == 7
    for spelling in ("", "persec"):
        assert metrics(f"{share_groups}totalproducerequests{spelling}_total", group="g") == 2
        assert metrics(f"{share_groups}failedproducerequests{spelling}_total", group="g") == 1
    assert metrics("kbroker_requests_total", api="Heartbeat") == 2
    assert metrics("kbroker_request_seconds_count", api="Heartbeat") == 2
    assert metrics("kbroker_request_seconds_bucket", api="Heartbeat", le="+Inf") == 2
    assert metrics("kbroker_request_seconds_sum", api="Heartbeat") > 0
    error = {"api": "Heartbeat", "error": "NOT_COORDINATOR"}
    assert metrics("kbroker_request_errors_total", **error) == 2
    assert metrics("kbroker_fsync_seconds_count") >= 1
    assert metrics("kbroker_event_loop_lag_seconds_count") >= 1
    assert metrics("kbroker_isr_changes_total", change="shrink") == 0
    assert metrics("kbroker_connections", listener="PLAINTEXT") == 1
    assert metrics("kbroker_client_info", software="unknown", version="") == 1
    directory = {"data_dir": str(tmp_path)}
    assert metrics("kbroker_storage_bytes", **directory) == len(batch([b"a"]))
    assert metrics("kbroker_storage_free_bytes", **directory) > 0
    assert metrics("kbroker_log_dir_read_only", **directory) == 0
    assert metrics("kbroker_metrics_dropped_series", what="groups") == 0


async def test_both_exposition_formats_have_equal_values() -> None:
    async with served() as (broker, http), connected(broker.endpoint) as wire:
        topic = await create(broker, "orders", 3)
        await produce(wire, topic, batch([b"a"]))
        await commit(wire, 'quoted "group"\\ of\nlines', "orders", 0, 1)
        endpoint = http.endpoint_of(1)
        text, opened = await scrape(endpoint), await scrape(endpoint, OPEN)
        ask = await get(endpoint, "/metrics", Accept=OPEN)
    assert ask.text.endswith("# EOF\n")
    assert ask.text.count("# EOF") == 1
    assert text.samples.keys() == opened.samples.keys()
    key = frozenset({("consumergroup", 'quoted "group"\\ of\nlines')})
    assert ("kafka_consumergroup_members", key) in text.samples


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        ("", "text/plain; version=0.0.4"),
        ("text/html", "text/plain; version=0.0.4"),
        (OPEN, "application/openmetrics-text; version=1.0.0"),
        (f"{OPEN};q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.1", "application/openmetrics-text"),
        ("text/plain;version=1.0.0;escaping=dots", "text/plain; version=0.0.4"),
    ],
)
async def test_accept_header_selects_exposition_format(accept: str, content_type: str) -> None:
    async with served() as (_, http):
        response = await get(http.endpoint_of(1), "/metrics", Accept=accept)
        assert response.headers["content-type"].startswith(content_type)
        assert int(response.headers["content-length"]) == len(response.body)
        assert response.body.endswith(b"# EOF\n") is ("openmetrics" in content_type)


async def test_sum_over_all_nodes_counts_each_partition_once() -> None:
    async with served(nodes=3) as (broker, http), connected(broker.endpoint):
        await create(broker, "orders", 6, 3)
        scrapes = [await scrape(http.endpoint_of(each.id)) for each in broker.nodes]
        for name in ("leader", "current_offset", "under_replicated_partition"):
            found = [
                dict(labels)["partition"]
                for metrics in scrapes
                for metric, labels in metrics.samples
                if metric == f"kafka_topic_partition_{name}" and ("topic", "orders") in labels
            ]
            assert sorted(found) == [*"012345"], name
        in_charge = "kafka_controller_kafkacontroller_activecontrollercount"
        assert sum(metrics(in_charge) for metrics in scrapes) == 1
        assert [metrics("kafka_server_replicamanager_partitioncount") for metrics in scrapes] == [
            6
        ] * 3
        assert sum(metrics("kafka_server_replicamanager_leadercount") for metrics in scrapes) == 6


async def test_stopped_node_exposes_process_metrics_only() -> None:
    async with served(nodes=2) as (broker, http):
        await broker.nodes[1].stop()
        metrics = await scrape(http.endpoint_of(2))
        assert metrics("process_open_fds") > 0
        assert "kafka_brokers" not in metrics.names()


async def test_counters_continue_when_leader_returns() -> None:
    async with served() as (broker, http), connected(broker.endpoint) as wire:
        topic = await create(broker, "orders")
        await produce(wire, topic, batch([b"a", b"b"]))
        (replica,) = [
            each for each in broker.node.partitions.opened() if each.topic.name == "orders"
        ]
        leader_state = replica.leader_state
        assert leader_state is not None
        replica.become_follower(replica.partition)
        assert replica.traffic.appended_records == 2
        replica.become_leader(leader_state)
        await produce(wire, topic, batch([b"c"]))
        metrics = await scrape(http.endpoint_of(1))
        assert metrics("kafka_server_brokertopicmetrics_messagesin_total", topic="orders") == 3
        size = len(batch([b"a", b"b"])) + len(batch([b"c"]))
        assert metrics("kafka_server_brokertopicmetrics_bytesin_total", topic="orders") == size


async def test_client_software_series_are_limited() -> None:
    async with served() as (broker, http), connected(broker.endpoint) as wire:
        await metadata(wire)
        connections = broker.server.connections
        (one,) = connections

        class Named:
            def __init__(self, number: int) -> None:
                self.peer = type("Peer", (), {"listener": "PLAINTEXT", "software": f"x{number}/1"})

            def abort(self) -> None:
                pass

            def is_overdue(self, *_: float) -> bool:
                return False

            def suspend_if_idle(self, now: float) -> None:
                pass

        many = {Named(number) for number in range(2 * SOFTWARE_MAX)}
        broker.server.connections = {one, *many}  # type: ignore[arg-type]
        metrics = await scrape(http.endpoint_of(1))
        broker.server.connections = connections
        kinds = [labels for name, labels in metrics.samples if name == "kbroker_client_info"]
        assert len(kinds) == SOFTWARE_MAX + 1
        assert metrics("kbroker_client_info", software=OTHERS, version="") >= SOFTWARE_MAX
        assert metrics("kbroker_connections", listener="PLAINTEXT") == 2 * SOFTWARE_MAX + 1


@pytest.mark.slow
async def test_scrape_of_ten_thousand_partitions_does_not_block_event_loop() -> None:
    async with served() as (broker, http), connected(broker.endpoint) as wire:
        topics = [await create(broker, f"topic-{index}", 1000) for index in range(10)]
        for topic in topics:
            cluster_topic = broker.node.cluster.topics[topic.name]
            for index in range(1000):
                broker.node.partitions.replica(cluster_topic, index)
        await produce(wire, topics[0], batch([b"a"]))
        endpoint = http.endpoint_of(1)
        with longest_step() as step:
            response = await get(endpoint, "/metrics")
        assert step.seconds < STEP_SECONDS_MAX / 2, step
        metrics = Scrape(samples_of(response))
        assert metrics("kafka_server_replicamanager_leadercount") == 10_000


async def test_concurrent_scrapes_share_one_result() -> None:
    async with served() as (broker, http):
        await create(broker, "orders", 100)
        responses: list[HttpResponse] = []

        async def ask() -> None:
            responses.append(await get(http.endpoint_of(1), "/metrics"))

        async with trio.open_nursery() as nursery:
            for _ in range(5):
                nursery.start_soon(ask)
        assert len({each.body for each in responses}) == 1


def test_times_are_exposed_as_histograms() -> None:
    from kbroker.runtime.timings import Timings
    from kbroker.web.metrics.node_metrics import _buckets

    times = Timings()
    for seconds in (0.0, 50e-6, 100e-6, 0.5, 100.0):
        times.record(seconds)
    times.record(0.001, 3)
    buckets = {float(bound): count for bound, count in _buckets(times)}
    assert buckets[64e-6] == 2
    assert buckets[256e-6] == 3
    assert buckets[1024e-6] == 6
    assert buckets[1.048576] == 7
    assert buckets[math.inf] == 8
    assert times.seconds == pytest.approx(100.50315)
