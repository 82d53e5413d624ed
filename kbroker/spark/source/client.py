"""Translation of ``kafka.*`` options, which follow the Java client, to librdkafka settings."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping
from typing import TypeVar

from kbroker.security.jaas import BadJaas, parse_jaas

from .options import OptionError

Settings = dict[str, object]
T = TypeVar("T")

logger = logging.getLogger(__name__)

# syslog level of librdkafka's log.
_CRITICAL = 2

# Java's property names and librdkafka's equivalents. Properties with the same name are not listed.
_SAME_MEANING = {
    "fetch.max.wait.ms": "fetch.wait.max.ms",
    "receive.buffer.bytes": "socket.receive.buffer.bytes",
    "send.buffer.bytes": "socket.send.buffer.bytes",
    "max.request.size": "message.max.bytes",
    "socket.connection.setup.timeout.max.ms": "socket.connection.setup.timeout.ms",
    "ssl.truststore.certificates": "ssl.ca.pem",
    "ssl.keystore.certificate.chain": "ssl.certificate.pem",
    "ssl.keystore.key": "ssl.key.pem",
}

_INT32_MAX = (1 << 31) - 1
# Value ranges of librdkafka that are narrower than those of the Java client. The nearest allowed
# value is used. If -1 means the system default or no limit in Java, librdkafka's lowest value means
# the same.
_RANGES = {
    "auto.commit.interval.ms": (0, 86_400_000),
    "batch.size": (1, _INT32_MAX),
    "connections.max.idle.ms": (0, _INT32_MAX),
    "delivery.timeout.ms": (0, _INT32_MAX),
    "fetch.max.bytes": (0, _INT32_MAX - 512),
    "fetch.min.bytes": (1, 100_000_000),
    "fetch.wait.max.ms": (0, 300_000),
    "linger.ms": (0, 900_000),
    "max.in.flight.requests.per.connection": (1, 1_000_000),
    "max.partition.fetch.bytes": (1, 1_000_000_000),
    "message.max.bytes": (1_000, 1_000_000_000),
    "metadata.max.age.ms": (1, 86_400_000),
    "metadata.recovery.rebootstrap.trigger.ms": (0, _INT32_MAX),
    "queue.buffering.max.kbytes": (1, _INT32_MAX),
    "reconnect.backoff.max.ms": (0, 3_600_000),
    "reconnect.backoff.ms": (0, 3_600_000),
    "request.timeout.ms": (1, 900_000),
    "retries": (0, _INT32_MAX),
    "retry.backoff.max.ms": (1, 300_000),
    "retry.backoff.ms": (1, 300_000),
    "sasl.kerberos.min.time.before.relogin": (0, 86_400_000),
    "sasl.oauthbearer.assertion.claim.exp.seconds": (1, 86_400),
    "socket.connection.setup.timeout.ms": (1_000, _INT32_MAX),
    "socket.receive.buffer.bytes": (0, 100_000_000),
    "socket.send.buffer.bytes": (0, 100_000_000),
    "transaction.timeout.ms": (1_000, _INT32_MAX),
}
_DEFAULTS = {
    "fetch.max.bytes": 52_428_800,
    "message.max.bytes": 1_000_000,
    "reconnect.backoff.max.ms": 10_000,
    "reconnect.backoff.ms": 100,
    "retry.backoff.max.ms": 1_000,
    "retry.backoff.ms": 100,
}
# Properties that librdkafka requires to be at least as large as another one. `_DEFAULTS` has
# librdkafka's defaults of both.
_MINIMUM_FROM = {
    "fetch.max.bytes": "message.max.bytes",
    "reconnect.backoff.max.ms": "reconnect.backoff.ms",
    "retry.backoff.max.ms": "retry.backoff.ms",
}

# Compression levels per codec (KIP-390). librdkafka has one property for the selected codec.
_COMPRESSION_LEVEL = re.compile(r"compression\.(gzip|lz4|zstd)\.level")

# Properties of the Java client without an equivalent: accepted and ignored.
_WITHOUT_EFFECT = {
    "max.poll.records",
    "max.poll.interval.ms",
    "session.timeout.ms",
    "heartbeat.interval.ms",
    "default.api.timeout.ms",
    "group.protocol",
    "enable.metrics.push",
    "metrics.num.samples",
    "metrics.sample.window.ms",
    "metrics.recording.level",
    "auto.include.jmx.reporter",
    "exclude.internal.topics",
    "max.block.ms",
    "metadata.max.idle.ms",
    "reconnect.backoff.max.ms.jitter",
    "ssl.truststore.type",
    "ssl.keystore.type",
    "ssl.protocol",
    "ssl.enabled.protocols",
    "bootstrap.controllers",
    "internal.throw.on.fetch.stable.offset.unsupported",
    "partitioner.adaptive.partitioning.enable",
    "partitioner.availability.timeout.ms",
    "partitioner.ignore.keys",
    "sasl.kerberos.ticket.renew.jitter",
    "sasl.kerberos.ticket.renew.window.factor",
    "sasl.login.connect.timeout.ms",
    "sasl.login.read.timeout.ms",
    "sasl.login.refresh.buffer.seconds",
    "sasl.login.refresh.min.period.seconds",
    "sasl.login.refresh.window.factor",
    "sasl.login.refresh.window.jitter",
    "sasl.login.retry.backoff.max.ms",
    "sasl.login.retry.backoff.ms",
    "sasl.oauthbearer.allow.unverified.audience",
    "sasl.oauthbearer.allow.unverified.issuer",
    "sasl.oauthbearer.assertion.template.file",
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.expected.audience",
    "sasl.oauthbearer.expected.issuer",
    "sasl.oauthbearer.header.urlencode",
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.url",
    "sasl.oauthbearer.scope.claim.name",
    "share.acquire.mode",
    "ssl.keymanager.algorithm",
    "ssl.provider",
    "ssl.secure.random.implementation",
    "ssl.trustmanager.algorithm",
    "transaction.two.phase.commit.enable",
}

_UNSUPPORTED = {
    "auto.offset.reset": (
        "Set the option 'startingOffsets' to earliest or latest instead. It applies to new "
        "queries; a restarted query continues at the offsets in its checkpoint."
    ),
    "key.deserializer": "Keys are read as bytes: cast the column key instead.",
    "value.deserializer": "Values are read as bytes: cast the column value instead.",
    "key.serializer": "Keys are written as bytes: cast the column key instead.",
    "value.serializer": "Values are written as bytes: cast the column value instead.",
    "enable.auto.commit": (
        "Spark keeps the offsets; set 'commitToGroup' to also commit them to a consumer group."
    ),
    "interceptor.classes": "Interceptors are Java classes and could change records.",
    "transactional.id": "The sink is at-least-once: it writes without transactions.",
    "partitioner.class": (
        "Partitioners are Java classes. The sink partitions like Java's default partitioner; to "
        "choose the partition, add a column 'partition'."
    ),
    "partition.assignment.strategy": "Partitions are assigned by Spark, and no group is joined.",
    "group.instance.id": "No group is joined.",
}

# librdkafka's properties for Java's key and trust stores, by property and store type.
_FILES = {
    ("ssl.truststore.location", "PEM"): ("ssl.ca.location",),
    ("ssl.keystore.location", "PKCS12"): ("ssl.keystore.location",),
    ("ssl.keystore.location", "PEM"): ("ssl.certificate.location", "ssl.key.location"),
}


def settings(kafka: Mapping[str, str]) -> Settings:
    """Translate ``kafka.*`` options, given without the prefix.

    Raises:
        OptionError: An option is not allowed, or has no equivalent (Java classes, JKS files).
    """
    found: Settings = {}
    for name, value in kafka.items():
        if name in _UNSUPPORTED:
            raise OptionError(f"Kafka option '{name}' is not supported. {_UNSUPPORTED[name]}")
        if name in _WITHOUT_EFFECT:
            continue
        if name.endswith((".class", ".classes", ".providers", ".reporters")):
            raise OptionError(
                f"Kafka option '{name}' is not supported: it names Java classes, and "
                'format("kbroker") does not use the Java client; use format("kafka") instead.'
            )
        found |= _translated(name, value, kafka)
    return _within_limits(found)


def warn_without_effect(kafka: Mapping[str, str]) -> None:
    """Log a warning for accepted ``kafka.*`` options (given without the prefix) without effect."""
    names = sorted(_WITHOUT_EFFECT.intersection(kafka))
    if names:
        logger.warning(
            'these Kafka options have no effect with format("kbroker"), which does not use the '
            "Java client: %s",
            ", ".join(names),
        )


def _within_limits(found: Settings) -> Settings:
    """Replace integers outside librdkafka's limits by the nearest allowed value."""
    for name, (lowest, highest) in _RANGES.items():
        number = _integer(found.get(name))
        if number is not None and not lowest <= number <= highest:
            found[name] = min(max(number, lowest), highest)
    for name, other in _MINIMUM_FROM.items():
        value = _integer(found.get(name, _DEFAULTS[name]))
        least = _integer(found.get(other, _DEFAULTS[other]))
        if value is not None and least is not None and value < least:
            found[name] = least
    return found


def _integer(value: object) -> int | None:
    """Return a value as an integer, or None if it is unset or not an integer."""
    try:
        return int(str(value))
    except ValueError:
        return None


def _translated(name: str, value: str, kafka: Mapping[str, str]) -> Settings:
    if name == "sasl.jaas.config":
        return _sasl_credentials(value)
    if name == "buffer.memory":
        return {"queue.buffering.max.kbytes": (_integer(value) or 0) // 1024}
    if found := _COMPRESSION_LEVEL.fullmatch(name):
        codec = kafka.get("compression.type", "none").strip().lower()
        return {"compression.level": value} if codec == found[1] else {}
    if name == "ssl.endpoint.identification.algorithm" and not value.strip():
        return {name: "none"}
    if name in ("ssl.truststore.location", "ssl.keystore.location"):
        return _store(name, value, kafka)
    if name == "ssl.truststore.password":
        return {}
    return {_SAME_MEANING.get(name, name): value}


def _sasl_credentials(value: str) -> Settings:
    """Return the user name and password in a JAAS configuration."""
    try:
        fields = parse_jaas(value).options
    except BadJaas as error:
        raise OptionError(f"Kafka option 'sasl.jaas.config': {error}") from None
    if "username" not in fields or "password" not in fields:
        raise OptionError(
            "Kafka option 'sasl.jaas.config' must contain username and password; for other "
            "mechanisms use librdkafka's kafka.sasl.* options"
        )
    return {"sasl.username": fields["username"], "sasl.password": fields["password"]}


def _store(name: str, value: str, kafka: Mapping[str, str]) -> Settings:
    given = kafka.get(name.replace("location", "type"), "JKS").upper()
    ours = _FILES.get((name, given))
    if ours is None:
        kinds = " or ".join(kind for store, kind in _FILES if store == name)
        raise OptionError(
            f"Kafka option '{name}' is a {given} file, but librdkafka reads only {kinds}: convert "
            f"it (keytool -importkeystore, openssl pkcs12) and set kafka."
            f"{name.replace('location', 'type')} to the new type"
        )
    return dict.fromkeys(ours, value)


def create_client(kind: Callable[[Settings], T], chosen: Settings) -> T:
    """Create a confluent-kafka client that logs critical errors only.

    Other failures are reported through Spark.

    Args:
        kind: Class of the client.
        chosen: Settings. librdkafka accepts settings of other client types.

    Returns:
        The client.

    Raises:
        OptionError: librdkafka rejects a setting or its value.
    """
    from confluent_kafka import KafkaException

    try:
        return kind({"log_level": _CRITICAL, "enable.metrics.push": False, **chosen})
    except (KafkaException, TypeError, ValueError) as error:
        reason = error.args[0].str() if isinstance(error, KafkaException) else error
        raise OptionError(
            f"librdkafka rejects these kafka.* options: {reason}. For its properties see "
            "https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md"
        ) from None


def reads_committed(kafka: Mapping[str, str]) -> bool:
    """Return True for the isolation level read_committed; the default is Java's read_uncommitted.

    Raises:
        OptionError: The isolation level is unknown.
    """
    level = kafka.get("isolation.level", "read_uncommitted").lower()
    if level not in ("read_uncommitted", "read_committed"):
        raise OptionError(
            "Kafka option 'isolation.level' must be read_committed or read_uncommitted, not "
            f"'{level}'"
        )
    return level == "read_committed"
