"""Client metrics (KIP-714): subscriptions, and the last push of each client.

Subscriptions are config resources of the cluster (``client-metrics``). Each node serves its own
clients. A push is stored as received and parsed only when it is read, so a large push costs memory
only.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import NamedTuple
from uuid import UUID

from kbroker.cluster import Cluster, ConfigResource, ResourceType
from kbroker.config import BrokerConfig, ClientMetricsConfig
from kbroker.coordinator.consumer.patterns import Pattern, compile_pattern
from kbroker.protocol.checksum import crc32c
from kbroker.protocol.compression import Codec, decompress
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.otlp import Metric, read_metrics
from kbroker.protocol.schema import ZERO_UUID
from kbroker.runtime.clock import Clock
from kbroker.runtime.ids import random_uuid

# Maximum number of client instances. The least recently seen one is dropped.
INSTANCES_MAX = 10_000
# Maximum number of bytes of all stored pushes together.
KEPT_BYTES_MAX = 16 * 1024 * 1024
# Maximum decompressed size of a push in bytes (CVE-2026-111073: Kafka checks the compressed size only).
INFLATED_BYTES_MAX = 4 * 1024 * 1024
# Requested metric name that selects all metrics, in responses.
EVERYTHING = ""
# Metric name that selects all metrics, in subscriptions.
ALL = "*"
# Accepted compression types in order of preference.
ACCEPTED = (Codec.ZSTD, Codec.LZ4, Codec.GZIP, Codec.SNAPPY)
RESERVED = frozenset({ZERO_UUID, UUID(int=1)})
# Errors of a push after which a client may request its subscription at once.
RESUBSCRIBE_ERRORS = (ErrorCode.UNKNOWN_SUBSCRIPTION_ID, ErrorCode.UNSUPPORTED_COMPRESSION_TYPE)

# Labels of a client by selector name: client_id, client_source_address, ...
Labels = Mapping[str, str]


class Subscription(NamedTuple):
    """One subscription resource: interval, metric name prefixes, and matchers of labels."""

    interval_ms: int
    metrics: tuple[str, ...]
    matchers: tuple[tuple[str, Callable[[str], bool]], ...]

    def matches(self, labels: Labels) -> bool:
        """Return True if each pattern matches the whole label of the client."""
        return all(matches_label(labels.get(name, "")) for name, matches_label in self.matchers)


class EffectiveSubscription(NamedTuple):
    """Effective subscription of one client.

    Attributes:
        instance_id: Client instance ID.
        subscription_id: ID of the subscription, a checksum of its contents.
        interval_ms: Push interval.
        metrics: Requested metric name prefixes.
    """

    instance_id: UUID
    subscription_id: int
    interval_ms: int
    metrics: tuple[str, ...]


class Pushed(NamedTuple):
    """Last push of a client."""

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
    """One client instance."""

    __slots__ = (
        "error",
        "has_requested",
        "is_terminated",
        "labels",
        "pushed",
        "pushed_at_ms",
        "requested_at_ms",
        "revision",
        "subscription",
    )

    def __init__(self, subscription: EffectiveSubscription, labels: Labels, revision: int) -> None:
        self.subscription = subscription
        self.labels = labels
        # Revision of the subscriptions from which `subscription` was computed.
        self.revision = revision
        self.requested_at_ms = self.pushed_at_ms = -subscription.interval_ms
        # True if the client has requested its subscription, and pushed nothing since.
        self.has_requested = False
        self.error = ErrorCode.NONE
        # True if the client sent its terminating push.
        self.is_terminated = False
        self.pushed: Pushed | None = None


class ClientMetrics:
    """Client instances of one node with their last pushes."""

    def __init__(self, cluster: Cluster, config: BrokerConfig, clock: Clock) -> None:
        self._cluster = cluster
        self._config = config
        self._clock = clock
        # The most recently seen instance is the last one.
        self._instances: OrderedDict[UUID, Instance] = OrderedDict()
        self._kept_bytes = 0
        self._subscriptions: list[Subscription] | None = None
        self._has_subscriptions: bool | None = None
        self._revision = 0
        cluster.subscribe_configs(self._configs_changed)

    @property
    def bytes_max(self) -> int:
        """Maximum compressed size of a push in bytes."""
        return self._config.telemetry_max_bytes

    @property
    def has_subscriptions(self) -> bool:
        """True if a subscription exists.

        Unauthenticated clients cause this check, so it compiles no patterns.
        """
        if self._has_subscriptions is None:
            kinds = (resource.type for resource in self._cluster.configs)
            self._has_subscriptions = ResourceType.CLIENT_METRICS in kinds
        return self._has_subscriptions

    def latest(self) -> Iterator[tuple[Labels, Pushed]]:
        """Yield labels and last push of each client."""
        for each in [*self._instances.values()]:
            if each.pushed is not None:
                yield each.labels, each.pushed

    # -- requests

    def subscribe(self, instance_id: UUID, labels: Labels) -> EffectiveSubscription:
        """Return the subscription of a client. A new client gets a client instance ID.

        Args:
            instance_id: Client instance ID of the request; zero for a new client.
            labels: Labels of the client.

        Raises:
            KafkaError: THROTTLING_QUOTA_EXCEEDED: the push interval is not over.
        """
        if instance_id in RESERVED:
            instance_id = random_uuid()
        instance = self._instance(instance_id, labels)
        now_ms = self._clock.monotonic_ms()
        seen_ms = max(instance.requested_at_ms, instance.pushed_at_ms)
        if (
            now_ms - seen_ms < instance.subscription.interval_ms
            and instance.error not in RESUBSCRIBE_ERRORS
        ):
            raise self._record_error(
                instance,
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"Request from the client [{instance_id}] arrived before the next push interval time",
            )
        instance.requested_at_ms = now_ms
        instance.has_requested = True
        instance.error = ErrorCode.NONE
        return instance.subscription

    def check_push(
        self,
        instance_id: UUID,
        labels: Labels,
        *,
        subscription_id: int,
        codec: int,
        size: int,
        is_last: bool,
    ) -> Instance:
        """Check a push, and return the client instance for `store_push`.

        Args:
            instance_id: Client instance ID.
            labels: Labels of the client.
            subscription_id: Subscription ID that the client knows.
            codec: Compression type.
            size: Compressed size in bytes.
            is_last: The client is terminating.

        Raises:
            KafkaError: INVALID_REQUEST without an instance ID, or after a terminating push.
                THROTTLING_QUOTA_EXCEEDED before the end of the push interval.
                UNKNOWN_SUBSCRIPTION_ID if the subscription changed. UNSUPPORTED_COMPRESSION_TYPE.
                TELEMETRY_TOO_LARGE.
        """
        if instance_id in RESERVED:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"Invalid client instance id: {instance_id}"
            )
        instance = self._instance(instance_id, labels)
        self._check_push(instance, subscription_id, codec, size, is_last=is_last)
        instance.error = ErrorCode.NONE
        instance.is_terminated = is_last
        return instance

    def store_push(self, instance: Instance, codec: int, data: bytes) -> None:
        """Store a push of a client, replacing the previous one."""
        if self._instances.get(instance.subscription.instance_id) is not instance:
            return  # the instance was dropped in the meantime
        self._drop(instance)
        instance.pushed = Pushed(self._clock.monotonic_ms(), codec, data)
        self._kept_bytes += len(data)
        if self._kept_bytes > KEPT_BYTES_MAX:
            self._drop_oldest(instance)

    def _check_push(
        self, instance: Instance, subscription_id: int, codec: int, size: int, *, is_last: bool
    ) -> None:
        if instance.is_terminated:
            raise self._record_error(
                instance,
                ErrorCode.INVALID_REQUEST,
                f"Client [{instance.subscription.instance_id}] sent the previous request with state "
                "terminating to TRUE, can not accept any requests after that",
            )
        now_ms = self._clock.monotonic_ms()
        # The first push after a subscription request may come at any time: clients add jitter.
        is_due = now_ms - instance.pushed_at_ms >= instance.subscription.interval_ms
        if instance.has_requested or is_due:
            instance.has_requested = False
            instance.pushed_at_ms = now_ms
        elif not is_last:
            raise self._record_error(
                instance,
                ErrorCode.THROTTLING_QUOTA_EXCEEDED,
                f"Request from the client [{instance.subscription.instance_id}] arrived before the next push "
                "interval time",
            )
        if subscription_id != instance.subscription.subscription_id:
            raise self._record_error(
                instance,
                ErrorCode.UNKNOWN_SUBSCRIPTION_ID,
                f"Unknown client subscription id: {subscription_id}",
            )
        if codec not in (Codec.NONE, *ACCEPTED):
            raise self._record_error(
                instance,
                ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
                f"Unknown compression type: {codec}",
            )
        if size > self.bytes_max:
            raise self._record_error(
                instance,
                ErrorCode.TELEMETRY_TOO_LARGE,
                f"Telemetry request from [{instance.subscription.instance_id}] is larger than the maximum "
                f"allowed size {self.bytes_max}",
            )

    @staticmethod
    def _record_error(instance: Instance, code: ErrorCode, message: str) -> KafkaError:
        instance.error = code
        return KafkaError(code, message)

    # -- clients

    def _instance(self, instance_id: UUID, labels: Labels) -> Instance:
        """Return a client instance with its current subscription."""
        instance = self._instances.get(instance_id)
        if instance is None:
            labels = {**labels, "client_instance_id": str(instance_id)}
            subscription = self._subscription_of(instance_id, labels)
            instance = self._instances[instance_id] = Instance(subscription, labels, self._revision)
            if len(self._instances) > INSTANCES_MAX:
                self._forget(next(iter(self._instances)))
        else:
            self._instances.move_to_end(instance_id)
            if instance.revision != self._revision:
                instance.subscription = self._subscription_of(instance_id, instance.labels)
                instance.revision = self._revision
        return instance

    def _forget(self, instance_id: UUID) -> None:
        self._drop(self._instances.pop(instance_id))

    def _drop_oldest(self, newest: Instance) -> None:
        """Drop the pushes of the least recently seen clients."""
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
            self._subscriptions = self._has_subscriptions = None
            self._revision += 1

    def _subscription_of(self, instance_id: UUID, labels: Labels) -> EffectiveSubscription:
        """Merge the subscriptions that match a client: all metrics, shortest interval."""
        matching = [each for each in self._known_subscriptions() if each.matches(labels)]
        default = ClientMetricsConfig({}, self._config).interval_ms
        interval_ms = min((each.interval_ms for each in matching), default=default)
        names = sorted({name for each in matching for name in each.metrics})
        metrics = (EVERYTHING,) if ALL in names else tuple(names)
        text = f"{instance_id} {interval_ms} {' '.join(metrics)} {len(metrics)}"
        number = crc32c(text.encode())
        return EffectiveSubscription(
            instance_id, number - (number >> 31 << 32), interval_ms, metrics
        )

    def _known_subscriptions(self) -> list[Subscription]:
        if self._subscriptions is None:
            self._subscriptions = [
                _subscription(ClientMetricsConfig.stored(stored.values, self._config))
                for resource, stored in self._cluster.configs.items()
                if resource.type is ResourceType.CLIENT_METRICS
            ]
        return self._subscriptions


def _fits(pattern: Pattern, label: str) -> bool:
    """Return True if a label matches, and False if it is too long for the pattern."""
    try:
        return pattern.matches(label)
    except KafkaError:
        return False


def _subscription(config: ClientMetricsConfig) -> Subscription:
    matchers: list[tuple[str, Callable[[str], bool]]] = []
    for item in filter(None, config.match):
        name, _, pattern = item.partition("=")
        try:
            matchers.append((name.strip(), partial(_fits, compile_pattern(pattern.strip()))))
        except KafkaError:
            # An older version accepted this pattern, or RE2 is not installed now: match nothing.
            matchers.append((name, lambda _: False))
    metrics = tuple(filter(None, config.metrics))
    return Subscription(config.interval_ms, metrics, tuple(matchers))
