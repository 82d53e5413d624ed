"""Metrics that clients send of themselves (KIP-714): who is asked for which, and what came last.

Subscriptions are resources of the cluster (``client-metrics``), and each node answers its own clients.
What a client has sent is kept as it came, the newest of each, and read when somebody looks: a client
that sends much costs no more than its bytes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple
from uuid import UUID

from crc32c import crc32c

from kbroker.cluster import Cluster, ConfigResource, ResourceType
from kbroker.config import BrokerConfig, ClientMetricsConfig
from kbroker.coordinator.consumer.patterns import compile_pattern
from kbroker.protocol.compression import Codec, decompress
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.otlp import Metric, read_metrics
from kbroker.protocol.schema import ZERO_UUID
from kbroker.runtime.clock import Clock
from kbroker.runtime.ids import random_uuid

INSTANCES_MAX = 10_000
"""Clients that are known at a time; of more the one that was seen longest ago is forgotten."""
KEPT_BYTES_MAX = 16 * 1024 * 1024
"""Of all that clients have sent, together."""
INFLATED_BYTES_MAX = 4 * 1024 * 1024
"""What may come out of one push (CVE-2026-111073: Kafka looks at the compressed size alone)."""
EVERYTHING = ""
"""What a client is asked for that is to send all its metrics."""
ALL = "*"
ACCEPTED = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
"""In the order in which clients should choose."""
RESERVED = frozenset({ZERO_UUID, UUID(int=1)})
ASKS_AGAIN = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)
"""Errors after which a client may ask for its subscription at once."""

Labels = Mapping[str, str]
"""What is known of a client, by the names of selectors: ``client_id``, ``client_source_address``..."""


class Subscription(NamedTuple):
    """What one resource asks of those clients that fit it."""

    interval_ms: int
    metrics: tuple[str, ...]
    tests: tuple[tuple[str, Callable[[str], object]], ...]

    def fits(self, labels: Labels) -> bool:
        """Whether each of its patterns fits the client as a whole."""
        return all(test(labels.get(name, "")) for name, test in self.tests)


class Asked(NamedTuple):
    """What a client is asked for: its own id, that of its subscription, and the beginnings of names."""

    instance_id: UUID
    subscription_id: int
    interval_ms: int
    metrics: tuple[str, ...]


class Pushed(NamedTuple):
    """What a client has sent last."""

    at_ms: int
    codec: int
    data: bytes

    def metrics(self, limit: int) -> list[Metric]:
        """Read up to `limit` data points. This takes up to 50 ms, so not in the event loop.

        Raises:
            ValueError: The push cannot be read.
        """
        return read_metrics(decompress(self.codec, self.data, INFLATED_BYTES_MAX), limit)


class Instance:
    """One client, for as long as it says who it is."""

    __slots__ = (
        "asked",
        "asked_at_ms",
        "error",
        "has_asked",
        "is_over",
        "labels",
        "pushed",
        "pushed_at_ms",
        "revision",
    )

    def __init__(self, asked: Asked, labels: Labels, revision: int) -> None:
        self.asked = asked
        self.labels = labels
        self.revision = revision
        """Which subscriptions `asked` was made of."""
        self.asked_at_ms = self.pushed_at_ms = -asked.interval_ms
        self.has_asked = False
        """And has sent nothing since."""
        self.error = ErrorCode.NONE
        self.is_over = False
        """It has said that nothing more comes."""
        self.pushed: Pushed | None = None


class ClientMetrics:
    """The clients of one node, and what they have sent."""

    def __init__(self, cluster: Cluster, config: BrokerConfig, clock: Clock) -> None:
        self._cluster = cluster
        self._config = config
        self._clock = clock
        self._instances: OrderedDict[UUID, Instance] = OrderedDict()
        """The one that was seen last stands last."""
        self._kept_bytes = 0
        self._subscriptions: list[Subscription] | None = None
        self._are_wanted: bool | None = None
        self._revision = 0
        cluster.subscribe_configs(self._configs_changed)

    @property
    def bytes_max(self) -> int:
        """How large a push may be, as it is sent."""
        return self._config.telemetry_max_bytes

    @property
    def are_wanted(self) -> bool:
        """Whether there is a subscription. Who asks may be anybody: no pattern is compiled for that."""
        if self._are_wanted is None:
            kinds = (resource.type for resource in self._cluster.configs)
            self._are_wanted = ResourceType.CLIENT_METRICS in kinds
        return self._are_wanted

    def latest(self) -> Iterator[tuple[Labels, Pushed]]:
        """What clients have sent last, and who they are."""
        for each in [*self._instances.values()]:
            if each.pushed is not None:
                yield each.labels, each.pushed

    # -- requests

    def ask(self, instance_id: UUID, labels: Labels) -> Asked:
        """What a client is asked for. A new one is given an id.

        Raises KafkaError: THROTTLING_QUOTA_EXCEEDED for who asks before its interval is over.
        """
        if instance_id in RESERVED:
            instance_id = random_uuid()
        instance = self._instance(instance_id, labels)
        now_ms = self._clock.coordinator_ms()
        seen_ms = max(instance.asked_at_ms, instance.pushed_at_ms)
        if now_ms - seen_ms < instance.asked.interval_ms and instance.error not in ASKS_AGAIN:
            raise self._failed(
                instance,
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"Request from the client [{instance_id}] arrived before the next push interval time",
            )
        instance.asked_at_ms = now_ms
        instance.has_asked = True
        instance.error = ErrorCode.NONE
        return instance.asked

    def expect(
        self,
        instance_id: UUID,
        labels: Labels,
        *,
        subscription_id: int,
        codec: int,
        size: int,
        is_last: bool,
    ) -> Instance:
        """Who sends metrics, and may; `keep` takes them.

        Parameters: `size` is that of what it sends, in bytes; `is_last` says that nothing more comes.

        Raises KafkaError: INVALID_REQUEST for a client without an id, and for one that has said that it is
        over; THROTTLING_QUOTA_EXCEEDED before its time; UNKNOWN_SUBSCRIPTION_ID when it is asked for
        something else now; UNSUPPORTED_COMPRESSION_TYPE; TELEMETRY_TOO_LARGE.
        """
        if instance_id in RESERVED:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Invalid client instance id: {instance_id}"
            )
        instance = self._instance(instance_id, labels)
        self._check_push(instance, subscription_id, codec, size, is_last=is_last)
        instance.error = ErrorCode.NONE
        instance.is_over = is_last
        return instance

    def keep(self, instance: Instance, codec: int, data: bytes) -> None:
        """Keep what a client has sent, in the place of what it had sent before."""
        if self._instances.get(instance.asked.instance_id) is not instance:
            return  # forgotten meanwhile
        self._drop(instance)
        instance.pushed = Pushed(self._clock.coordinator_ms(), codec, data)
        self._kept_bytes += len(data)
        if self._kept_bytes > KEPT_BYTES_MAX:
            self._make_room(instance)

    def _check_push(
        self, instance: Instance, subscription_id: int, codec: int, size: int, *, is_last: bool
    ) -> None:
        if instance.is_over:
            raise self._failed(
                instance,
                ErrorCode.INVALID_REQUEST,
                f"Client [{instance.asked.instance_id}] sent the previous request with state "
                "terminating to TRUE, can not accept any requests after that",
            )
        now_ms = self._clock.coordinator_ms()
        # The first one after it has asked comes when it likes: clients spread them.
        is_due = now_ms - instance.pushed_at_ms >= instance.asked.interval_ms
        if instance.has_asked or is_due:
            instance.has_asked = False
            instance.pushed_at_ms = now_ms
        elif not is_last:
            raise self._failed(
                instance,
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"Request from the client [{instance.asked.instance_id}] arrived before the next push "
                "interval time",
            )
        if subscription_id != instance.asked.subscription_id:
            raise self._failed(
                instance,
                ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
                f"Unknown client subscription id: {subscription_id}",
            )
        if codec not in (Codec.NONE, *ACCEPTED):
            raise self._failed(
                instance,
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"Unknown compression type: {codec}",
            )
        if size > self.bytes_max:
            raise self._failed(
                instance,
                ErrorCode.TELEMETRY_TOO_LARGE,
                f"Telemetry request from [{instance.asked.instance_id}] is larger than the maximum "
                f"allowed size {self.bytes_max}",
            )

    @staticmethod
    def _failed(instance: Instance, code: ErrorCode, message: str) -> KafkaError:
        instance.error = code
        return KafkaError(code, message)

    # -- clients

    def _instance(self, instance_id: UUID, labels: Labels) -> Instance:
        """A client, with what it is asked for now."""
        instance = self._instances.get(instance_id)
        if instance is None:
            labels = {**labels, "client_instance_id": str(instance_id)}
            asked = self._asked(instance_id, labels)
            instance = self._instances[instance_id] = Instance(asked, labels, self._revision)
            if len(self._instances) > INSTANCES_MAX:
                self._forget(next(iter(self._instances)))
        else:
            self._instances.move_to_end(instance_id)
            if instance.revision != self._revision:
                instance.asked = self._asked(instance_id, instance.labels)
                instance.revision = self._revision
        return instance

    def _forget(self, instance_id: UUID) -> None:
        self._drop(self._instances.pop(instance_id))

    def _make_room(self, newest: Instance) -> None:
        """Drop what was sent longest ago."""
        for each in self._instances.values():
            if each is not newest:
                self._drop(each)
            if self._kept_bytes <= KEPT_BYTES_MAX:
                return

    def _drop(self, instance: Instance) -> None:
        if instance.pushed is not None:
            self._kept_bytes -= len(instance.pushed.data)
            instance.pushed = None

    # -- subscriptions

    def _configs_changed(self, resource: ConfigResource) -> None:
        if resource.type is ResourceType.CLIENT_METRICS:
            self._subscriptions = self._are_wanted = None
            self._revision += 1

    def _asked(self, instance_id: UUID, labels: Labels) -> Asked:
        """All that subscriptions which fit a client ask for, as often as the most eager one wants it."""
        fitting = [each for each in self._known() if each.fits(labels)]
        default = ClientMetricsConfig({}, self._config).interval_ms
        interval_ms = min((each.interval_ms for each in fitting), default=default)
        names = sorted({name for each in fitting for name in each.metrics})
        metrics = (EVERYTHING,) if ALL in names else tuple(names)
        text = f"{instance_id} {interval_ms} {' '.join(metrics)} {len(metrics)}"
        number = crc32c(text.encode())
        return Asked(instance_id, number - (number >> 31 << 32), interval_ms, metrics)

    def _known(self) -> list[Subscription]:
        if self._subscriptions is None:
            self._subscriptions = [
                _subscription(ClientMetricsConfig.stored(stored.values, self._config))
                for resource, stored in self._cluster.configs.items()
                if resource.type is ResourceType.CLIENT_METRICS
            ]
        return self._subscriptions


def _subscription(config: ClientMetricsConfig) -> Subscription:
    tests = []
    for item in filter(None, config.match):
        name, _, pattern = item.partition("=")
        try:
            tests.append((name.strip(), compile_pattern(pattern.strip())))
        except KafkaError:  # of a cluster that knew no better when it was stored
            tests.append((name, lambda _: False))
    metrics = tuple(filter(None, config.metrics))
    return Subscription(config.interval_ms, metrics, tuple(tests))
