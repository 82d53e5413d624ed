"""The ``kafka.*`` options, which users write for the Java client, as librdkafka takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kbroker.security.jaas import BadJaas, parse_jaas

from .options import OptionError

Settings = dict[str, Any]

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

_WITHOUT_MEANING = {
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
}
"""They tune what the Java client does and this one has no need of: bulk reads without a group."""

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
        if name in _WITHOUT_MEANING:
            continue
        if name.endswith((".class", ".classes", ".providers", ".reporters")):
            raise OptionError(
                f"Kafka option '{name}' is not supported: it names Java classes, and "
                'format("kbroker") runs without Java\'s client. format("kafka") takes it.'
            )
        found |= _translated(name, value, kafka)
    return found


def _translated(name: str, value: str, kafka: Mapping[str, str]) -> Settings:
    if name == "sasl.jaas.config":
        return _login(value)
    if name == "buffer.memory":
        return {"queue.buffering.max.kbytes": max(1, int(value) // 1024)}
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


def made(kind: Callable[[Settings], Any], chosen: Settings) -> Any:
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
