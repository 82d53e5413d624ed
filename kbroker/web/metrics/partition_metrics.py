"""Topic and partition metrics.

The leader of a partition reports it; the controller reports a partition without a leader. Metrics of a
topic are reported with its partition 0. The sum over all nodes therefore counts each of them once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

from kbroker.cluster import NO_LEADER, Partition, Topic
from kbroker.node.node import Node
from kbroker.partitions.replica import Replica
from kbroker.protocol.api_keys import ApiKey
from kbroker.runtime.time_slices import DutyCycle
from kbroker.storage.errors import StorageError

from .exposition import Family, escaped, format_labels

# Partitions between two checks for a pause.
PARTITIONS_AT_ONCE = 16
PARTITION = "kafka_topic_partition_"
# Metrics of Kafka's BrokerTopicMetrics, each in two spellings.
TRAFFIC = {
    "messagesin": "Records appended.",
    "bytesin": "Bytes appended.",
    "bytesout": "Bytes read by clients.",
    "totalproducerequests": "Produced batches.",
    "totalfetchrequests": "Fetched partitions.",
    "failedproducerequests": "Rejected batches.",
    "failedfetchrequests": "Failed fetches of partitions.",
}
ALL_TOPICS = ""


def _gauge(name: str, text: str) -> Family:
    return Family(name, "gauge", text)


class PartitionMetrics:
    """One scrape of the partitions that a node leads or hosts."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._topic_partitions = _gauge("kafka_topic_partitions", "Partitions of a topic.")
        self._current = _gauge(f"{PARTITION}current_offset", "The high watermark.")
        self._oldest = _gauge(f"{PARTITION}oldest_offset", "The log start offset.")
        self._leader = _gauge(f"{PARTITION}leader", "Node ID of the leader; -1 without a leader.")
        self._replicas = _gauge(f"{PARTITION}replicas", "Number of replicas.")
        self._in_sync = _gauge(f"{PARTITION}in_sync_replica", "Number of in-sync replicas.")
        self._preferred = _gauge(
            f"{PARTITION}leader_is_preferred", "1 if the preferred replica is the leader."
        )
        self._under_replicated = _gauge(
            f"{PARTITION}under_replicated_partition", "1 if the partition is under-replicated."
        )
        self._under_minimum = _gauge(
            "kafka_cluster_partition_underminisr", "1 if the ISR is below min.insync.replicas."
        )
        self._at_minimum = _gauge(
            "kafka_cluster_partition_atminisr", "1 if the ISR is at min.insync.replicas."
        )
        self._count_of_replicas = _gauge(
            "kafka_cluster_partition_replicascount", "Number of replicas."
        )
        self._size = _gauge("kafka_log_log_size", "Bytes of a partition's log on this node.")
        # Bytes by log directory.
        self._stored = Counter({each.data_dir: 0 for each in node.partitions.logs.managers})
        self._traffic: Counter[tuple[str, str]] = Counter()
        # Topics of which this node leads a partition.
        self._topics: dict[str, None] = {}
        self._hosted = self._led = self._under_replicated_count = self._leaderless = 0

    async def collect(self, duty_cycle: DutyCycle) -> None:
        """Collect all partitions, pausing in between."""
        count = 0
        for topic in tuple(self._node.cluster.topics.values()):
            minimum = self._node.cluster.min_in_sync(topic)
            name = escaped(topic.name)
            for partition in topic.partitions:
                self._add_partition(topic, name, partition, minimum)
                count += 1
                if not count % PARTITIONS_AT_ONCE:
                    await duty_cycle.pause()
        for (key, topic_name), times in self._node.request_metrics.rejected.items():
            kind = "produce" if key == ApiKey.PRODUCE else "fetch"
            self._count(f"failed{kind}requests", topic_name, times)

    def _add_partition(self, topic: Topic, name: str, partition: Partition, minimum: int) -> None:
        node = self._node
        leads = node.partitions.leads(partition)
        is_leaderless = partition.leader == NO_LEADER and node.controller.in_charge
        labels = f'{{partition="{partition.index}",topic="{name}"}}'
        replica = node.partitions.opened_replica(topic, partition.index)
        if node.id in partition.replicas:
            self._hosted += 1
            is_new = replica is None and (topic.name, partition.index) not in node.partitions.logs
            if replica is not None or is_new:
                self._size.add(labels, 0 if replica is None else self._size_of(replica))
            if leads and (replica is not None or is_new):
                log = None if replica is None else replica.log
                self._current.add(labels, 0 if log is None else log.high_watermark)
                self._oldest.add(labels, 0 if log is None else log.log_start_offset)
        if not (leads or is_leaderless):
            return
        self._led += leads
        self._leaderless += is_leaderless
        in_sync, replicas = len(partition.isr), len(partition.replicas)
        needed = min(minimum, replicas)
        self._under_replicated_count += leads and in_sync < replicas
        self._leader.add(labels, partition.leader)
        self._replicas.add(labels, replicas)
        self._count_of_replicas.add(labels, replicas)
        self._in_sync.add(labels, in_sync)
        self._preferred.add(labels, int(partition.leader == partition.replicas[0]))
        self._under_replicated.add(labels, int(in_sync < replicas))
        self._under_minimum.add(labels, int(in_sync < needed))
        self._at_minimum.add(labels, int(in_sync == needed))
        if not partition.index:
            self._topic_partitions.add(f'{{topic="{name}"}}', len(topic.partitions))
        if replica is not None:
            self._count_traffic(topic.name, replica)

    def _size_of(self, replica: Replica) -> int:
        size = replica.log.segments.size
        with suppress(StorageError):  # all directories are offline
            directory = self._node.partitions.logs.where(replica.topic.name, replica.index)
            self._stored[directory.data_dir] += size
        return size

    def _count_traffic(self, topic: str, replica: Replica) -> None:
        self._topics[topic] = None
        self._count("messagesin", topic, replica.traffic.appended_records)
        self._count("bytesin", topic, replica.traffic.appended_bytes)
        self._count("bytesout", topic, replica.traffic.read_bytes)
        self._count("totalproducerequests", topic, replica.traffic.appends)
        self._count("totalfetchrequests", topic, replica.traffic.reads)

    def _count(self, metric: str, topic: str, times: int) -> None:
        self._traffic[metric, topic] += times
        if topic != ALL_TOPICS:
            self._traffic[metric, ALL_TOPICS] += times

    def families(self) -> Iterator[Family]:
        """Yield the collected families."""
        yield self._topic_partitions
        yield self._current
        yield self._oldest
        yield self._leader
        yield self._replicas
        yield self._in_sync
        yield self._preferred
        yield self._under_replicated
        yield self._under_minimum
        yield self._at_minimum
        yield self._count_of_replicas
        yield self._size
        stored = _gauge("kbroker_storage_bytes", "Bytes of the logs in a data directory.")
        for directory, size in self._stored.items():
            stored.add(format_labels(data_dir=directory), size)
        yield stored
        yield from self._traffic_families()
        yield from self._totals()

    def _traffic_families(self) -> Iterator[Family]:
        for metric, text in TRAFFIC.items():
            for spelling in (metric, f"{metric}persec"):
                name = f"kafka_server_brokertopicmetrics_{spelling}_total"
                family = Family(name, "counter", text)
                family.add("", self._traffic[metric, ALL_TOPICS])
                for topic in self._topics:
                    family.add(f'{{topic="{escaped(topic)}"}}', self._traffic[metric, topic])
                yield family

    def _totals(self) -> Iterator[Family]:
        manager = "kafka_server_replicamanager_"
        controller = "kafka_controller_kafkacontroller_"
        for name, text, value in (
            (f"{manager}partitioncount", "Partitions on this node.", self._hosted),
            (f"{manager}leadercount", "Partitions that this node leads.", self._led),
            (
                f"{manager}underreplicatedpartitions",
                "Under-replicated partitions that this node leads.",
                self._under_replicated_count,
            ),
            (
                f"{controller}offlinepartitionscount",
                "Partitions without a leader, reported by the controller.",
                self._leaderless,
            ),
        ):
            family = _gauge(name, text)
            family.add("", value)
            yield family
