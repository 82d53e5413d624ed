"""Node-level metrics: requests, connections, event loop and disks."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.metrics_core import Metric

from kbroker import __version__
from kbroker.broker.local_node import LocalNode
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode
from kbroker.runtime.timings import Timings
from kbroker.storage.errors import StorageError

from .loop_monitor import LoopMonitor

# Maximum number of reported client kinds: clients choose their name and version.
SOFTWARE_MAX = 100
OTHERS = "other"
# Report every second power of two (in µs) of the time histograms.
STEP = 2
# Powers of two of the first and last bucket: 64 µs and 17 s.
FIRST, LAST = 6, 24
SERVER = "kafka_server_"


class NodeMetrics:
    """A collector of current values."""

    def __init__(self, local: LocalNode, loop_monitor: LoopMonitor) -> None:
        self._local = local
        self._loop_monitor = loop_monitor

    def collect(self) -> Iterator[Metric]:
        """Yield all metrics."""
        yield _gauge("kbroker_build_info", "Version of kbroker.", {"version": __version__}, 1)
        yield from self._cluster()
        yield from self._requests()
        yield from self._clients()
        yield from self._work()
        yield from self._disks()

    def _cluster(self) -> Iterator[Metric]:
        node = self._local.node
        yield _gauge("kafka_brokers", "Nodes of the cluster.", {}, len(node.cluster.nodes))
        known = GaugeMetricFamily(
            "kafka_broker_info", "Address of a node.", labels=("id", "address")
        )
        for node_id, each in node.cluster.nodes.items():
            address = next(iter(each.listeners.values()), None)
            known.add_metric((str(node_id), str(address or "")), 1)
        yield known
        name, text = "kbroker_metadata_writable", "1 if this node can change the cluster metadata."
        yield _gauge(name, text, {}, node.cluster.store_problem is None)
        controller = "kafka_controller_kafkacontroller_activecontrollercount"
        in_charge = node.controller.in_charge
        yield _gauge(controller, "1 if this node is the controller.", {}, in_charge)
        for spelling in ("", "persec"):
            name = f"kafka_controller_controllerstats_uncleanleaderelections{spelling}"
            text = "Unclean leader elections."
            yield _counter(name, text, {}, node.cluster.unclean_elections)
        changes = CounterMetricFamily(
            "kbroker_isr_changes", "ISR changes by this node as leader.", labels=("change",)
        )
        changes.add_metric(("shrink",), node.replication.isr_manager.shrinks)
        changes.add_metric(("expand",), node.replication.isr_manager.expands)
        yield changes
        rebalances = CounterMetricFamily(
            "kbroker_group_rebalances", "Started rebalances by reason.", labels=("reason",)
        )
        for reason, count in sorted(node.groups.rebalances.items()):
            rebalances.add_metric((reason,), count)
        yield rebalances
        yield from self._dead_letters()

    def _dead_letters(self) -> Iterator[Metric]:
        letters = CounterMetricFamily(
            "kbroker_share_dead_letters",
            "Records that share groups gave up, by outcome of the write to the dead-letter queue.",
            labels=("group", "outcome"),
        )
        counts = self._local.node.share.dlq.counts
        for outcome, by_group in (("written", counts.written), ("lost", counts.lost)):
            for group_id, count in sorted(by_group.items()):
                letters.add_metric((group_id, outcome), count)
        yield letters
        prefix = f"{SERVER}sharegroupmetrics_deadletterqueue"
        for names, text, by_group in (
            (
                ("recordcount_count", "recordcount"),
                "Records written to dead-letter queues.",
                counts.written,
            ),
            (
                ("totalproducerequests", "totalproducerequestspersec"),
                "Batches sent to dead-letter queues.",
                counts.produced_batches,
            ),
            (
                ("failedproducerequests", "failedproducerequestspersec"),
                "Batches that were not written to dead-letter queues.",
                counts.failed_batches,
            ),
        ):
            for name in names:
                family = CounterMetricFamily(f"{prefix}{name}", text, labels=("group",))
                for group_id, count in sorted(by_group.items()):
                    family.add_metric((group_id,), count)
                yield family

    def _requests(self) -> Iterator[Metric]:
        request_metrics = self._local.node.request_metrics
        requests = CounterMetricFamily("kbroker_requests", "Requests.", labels=("api",))
        network = "kafka_network_requestmetrics_"
        kafka_named = CounterMetricFamily(f"{network}requests", "Requests.", labels=("request",))
        total = CounterMetricFamily(
            f"{network}totaltimems", "Total time of all responses in ms.", labels=("request",)
        )
        durations = HistogramMetricFamily(
            "kbroker_request_seconds", "Time from a request to its response.", labels=("api",)
        )
        for key in ApiKey:
            if not request_metrics.requests[key]:
                continue
            name, times = key.api_name, request_metrics.times[key]
            requests.add_metric((name,), request_metrics.requests[key])
            kafka_named.add_metric((name,), request_metrics.requests[key])
            total.add_metric((name,), times.seconds * 1000)
            durations.add_metric((name,), _buckets(times), times.seconds)
        errors = CounterMetricFamily(
            "kbroker_request_errors",
            "Errors in responses, counted per item.",
            labels=("api", "error"),
        )
        for (key_number, code), count in sorted(request_metrics.errors.items()):
            errors.add_metric((ApiKey(key_number).api_name, _name_of(code)), count)
        yield from (requests, durations, errors, kafka_named, total)

    def _clients(self) -> Iterator[Metric]:
        listeners = Counter({each.name: 0 for each in self._local.listeners})
        software: Counter[tuple[str, str]] = Counter()
        for connection in tuple(self._local.server.connections):
            peer = connection.peer
            listeners[peer.listener] += 1
            name, _, version = peer.software.partition("/")
            kind = (name or "unknown", version)
            if kind not in software and len(software) >= SOFTWARE_MAX:
                kind = (OTHERS, "")
            software[kind] += 1
        own = GaugeMetricFamily("kbroker_connections", "Open connections.", labels=("listener",))
        labels = ("listener", "networkProcessor")
        kafka_named = GaugeMetricFamily(
            f"{SERVER}socket_server_metrics_connection_count", "Open connections.", labels=labels
        )
        for listener, count in listeners.items():
            own.add_metric((listener,), count)
            kafka_named.add_metric((listener, "0"), count)
        clients = GaugeMetricFamily(
            "kbroker_client_info", "Open connections by software.", labels=("software", "version")
        )
        for kind, count in software.items():
            clients.add_metric(kind, count)
        yield from (own, clients, kafka_named)

    def _work(self) -> Iterator[Metric]:
        loop_monitor, passes = self._loop_monitor, self._local.node.partitions.flusher.passes
        yield _histogram(
            "kbroker_event_loop_lag_seconds", "Delay of event-loop wake-ups.", loop_monitor.lateness
        )
        yield _histogram("kbroker_fsync_seconds", "Duration of fsync calls on logs.", passes)
        idle = "Fraction of time in which the event loop is idle."
        for name in (
            "kafka_network_socketserver_networkprocessoravgidle_percent",
            "kafka_network_socketserver_networkprocessoravgidlepercent",
            f"{SERVER}kafkarequesthandlerpool_requesthandleravgidle_percent",
            f"{SERVER}kafkarequesthandlerpool_requesthandleravgidlepercent_total",
        ):
            yield _gauge(name, idle, {}, loop_monitor.idle)

    def _disks(self) -> Iterator[Metric]:
        free = GaugeMetricFamily(
            "kbroker_storage_free_bytes", "Free bytes on the disk.", labels=("data_dir",)
        )
        read_only = GaugeMetricFamily(
            "kbroker_log_dir_read_only",
            "1 if the log directory is read-only.",
            labels=("data_dir",),
        )
        for manager in self._local.node.partitions.logs.managers:
            labels = (manager.data_dir,)
            read_only.add_metric(labels, int(bool(manager.failed or manager.read_only_reason)))
            try:
                free.add_metric(labels, manager.usage()[1])
            except StorageError:
                continue
        yield from (free, read_only)
        for direction, count in _disk_bytes().items():
            name = f"{SERVER}kafkaserver_linux_disk_{direction}"
            yield _gauge(name, "Disk I/O of this process in bytes.", {}, count)


def _gauge(name: str, text: str, labels: dict[str, str], value: float) -> Metric:
    family = GaugeMetricFamily(name, text, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), value)
    return family


def _counter(name: str, text: str, labels: dict[str, str], value: float) -> Metric:
    family = CounterMetricFamily(name, text, labels=tuple(labels))
    family.add_metric(tuple(labels.values()), value)
    return family


def _histogram(name: str, text: str, times: Timings) -> Metric:
    family = HistogramMetricFamily(name, text)
    family.add_metric((), _buckets(times), times.seconds)
    return family


def _buckets(times: Timings) -> list[tuple[str, float]]:
    """Return cumulative histogram buckets with bounds in seconds."""
    counts = tuple(times.counts)
    some: list[tuple[str, float]] = [
        (str(2**power / 1e6), sum(counts[: power + 1])) for power in range(FIRST, LAST + 1, STEP)
    ]
    return [*some, ("+Inf", sum(counts))]


def _name_of(code: int) -> str:
    try:
        return ErrorCode(code).name
    except ValueError:
        return str(code)


def _disk_bytes() -> dict[str, int]:
    """Return the bytes that this process has read and written; empty if unknown (Linux only)."""
    try:
        with open("/proc/self/io", encoding="utf-8") as file:
            rows = dict(line.split(":") for line in file)
        return {name: int(rows[name]) for name in ("read_bytes", "write_bytes")}
    except (OSError, KeyError, ValueError):
        return {}
