"""The ``kafka.*`` options, which users write for the Java client, as librdkafka takes them."""

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

_CRITICAL = 2

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
"""Java's name and librdkafka's; where both have one name, nothing is said here."""

_INT32_MAX = (1 << 31) - 1
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
"""librdkafka's limits of properties to which the Java client allows more.

The nearest allowed value is used. Where Java's -1 means the default of the system, or no limit,
librdkafka's lowest value means the same.
"""
_DEFAULTS = {
    "fetch.max.bytes": 52_428_800,
    "message.max.bytes": 1_000_000,
    "reconnect.backoff.max.ms": 10_000,
    "reconnect.backoff.ms": 100,
    "retry.backoff.max.ms": 1_000,
    "retry.backoff.ms": 100,
}
_AT_LEAST = {
    "fetch.max.bytes": "message.max.bytes",
    "reconnect.backoff.max.ms": "reconnect.backoff.ms",
    "retry.backoff.max.ms": "retry.backoff.ms",
}
"""Properties that librdkafka refuses below another one; `_DEFAULTS` are its defaults of both."""

_COMPRESSION_LEVEL = re.compile(r"compression\.(gzip|lz4|zstd)\.level")
"""KIP-390. librdkafka has one property for the codec that is chosen."""

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
"""Properties of the Java client without a counterpart: they are accepted and have no effect."""

_REFUSED = {
    "auto.offset.reset": (
        "Instead set the option 'startingOffsets' to earliest or latest. Spark keeps the offsets "
        "of a query; 'startingOffsets' counts when a query is new, and a restarted one goes on "
        "where it was."
    ),
    "key.deserializer": "Keys are read as bytes: cast the column key instead.",
    "value.deserializer": "Values are read as bytes: cast the column value instead.",
    "key.serializer": "Keys are written as bytes: cast the column key instead.",
    "value.serializer": "Values are written as bytes: cast the column value instead.",
    "enable.auto.commit": (
        "Spark keeps the offsets; 'commitToGroup' commits progress to a group to look at."
    ),
    "interceptor.classes": "An interceptor could change records, and is a Java class.",
    "transactional.id": "The sink is at-least-once: it writes without transactions.",
    "partitioner.class": (
        "It is a Java class. Records go where Java's default partitioner puts them; a column "
        "'partition' puts them elsewhere."
    ),
    "partition.assignment.strategy": "Partitions are assigned by Spark, and no group is joined.",
    "group.instance.id": "No group is joined.",
}

_FILES = {
    ("ssl.truststore.location", "PEM"): ("ssl.ca.location",),
    ("ssl.keystore.location", "PKCS12"): ("ssl.keystore.location",),
    ("ssl.keystore.location", "PEM"): ("ssl.certificate.location", "ssl.key.location"),
}
"""Java's key stores, by their types, where librdkafka reads such files."""


def settings(kafka: Mapping[str, str]) -> Settings:
    """Translate ``kafka.*`` options, given without that prefix.

    Raises:
        OptionError: one is not allowed here, or is a Java class or file that has no counterpart.
    """
    found: Settings = {}
    for name, value in kafka.items():
        if name in _REFUSED:
            raise OptionError(f"Kafka option '{name}' is not supported. {_REFUSED[name]}")
        if name in _WITHOUT_EFFECT:
            continue
        if name.endswith((".class", ".classes", ".providers", ".reporters")):
            raise OptionError(
                f"Kafka option '{name}' is not supported: it names Java classes, and "
                'format("kbroker") runs without Java\'s client. format("kafka") takes it.'
            )
        found |= _translated(name, value, kafka)
    return _within_limits(found)


def warn_without_effect(kafka: Mapping[str, str]) -> None:
    """Log the ``kafka.*`` options, given without that prefix, that are accepted and have no effect."""
    names = sorted(_WITHOUT_EFFECT.intersection(kafka))
    if names:
        logger.warning(
            'these Kafka options have no effect with format("kbroker"), which runs without Java\'s '
            "client: %s",
            ", ".join(names),
        )


def _within_limits(found: Settings) -> Settings:
    """Replace integers that librdkafka does not accept by the nearest ones that it does."""
    for name, (lowest, highest) in _RANGES.items():
        number = _integer(found.get(name))
        if number is not None and not lowest <= number <= highest:
            found[name] = min(max(number, lowest), highest)
    for name, other in _AT_LEAST.items():
        value = _integer(found.get(name, _DEFAULTS[name]))
        least = _integer(found.get(other, _DEFAULTS[other]))
        if value is not None and least is not None and value < least:
            found[name] = least
    return found


def _integer(value: object) -> int | None:
    """Return a value as an integer; None if it is not set, or not an integer."""
    try:
        return int(str(value))
    except ValueError:
        return None


def _translated(name: str, value: str, kafka: Mapping[str, str]) -> Settings:
    if name == "sasl.jaas.config":
        return _login(value)
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


def _login(value: str) -> Settings:
    """Name and password out of Java's login configuration."""
    try:
        fields = parse_jaas(value).options
    except BadJaas as error:
        raise OptionError(f"Kafka option 'sasl.jaas.config': {error}") from None
    if "username" not in fields or "password" not in fields:
        raise OptionError(
            "Kafka option 'sasl.jaas.config' is understood when it has a username and a password; "
            "for other mechanisms give librdkafka's kafka.sasl.* options"
        )
    return {"sasl.username": fields["username"], "sasl.password": fields["password"]}


def _store(name: str, value: str, kafka: Mapping[str, str]) -> Settings:
    given = kafka.get(name.replace("location", "type"), "JKS").upper()
    ours = _FILES.get((name, given))
    if ours is None:
        kinds = " or ".join(kind for store, kind in _FILES if store == name)
        raise OptionError(
            f"Kafka option '{name}' is a {given} file here, and librdkafka reads {kinds}: convert it "
            f"(keytool -importkeystore, openssl pkcs12) and set kafka."
            f"{name.replace('location', 'type')} to that"
        )
    return dict.fromkeys(ours, value)


def made(kind: Callable[[Settings], T], chosen: Settings) -> T:
    """Make a client of confluent-kafka: quiet, so that failures speak through Spark.

    Parameters: `kind` is its class. Settings that only another kind understands do no harm.

    Raises:
        OptionError: librdkafka does not know a setting, or not its value.
    """
    from confluent_kafka import KafkaException

    try:
        return kind({"log_level": _CRITICAL, "enable.metrics.push": False, **chosen})
    except (KafkaException, TypeError, ValueError) as error:
        said = error.args[0].str() if isinstance(error, KafkaException) else error
        raise OptionError(
            f"librdkafka does not take these kafka.* options: {said}. Its names stand in "
            "https://github.com/confluentinc/librdkafka/blob/master/CONFIGURATION.md"
        ) from None


def reads_committed(kafka: Mapping[str, str]) -> bool:
    """Whether records of open and aborted transactions are left out; not by default, as in Java.

    Raises:
        OptionError: the level is unknown.
    """
    level = kafka.get("isolation.level", "read_uncommitted").lower()
    if level not in ("read_uncommitted", "read_committed"):
        raise OptionError(
            "Kafka option 'isolation.level' must be read_committed or read_uncommitted, and not "
            f"'{level}'"
        )
    return level == "read_committed"
