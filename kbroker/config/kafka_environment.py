"""Settings from ``KAFKA_*`` environment variables, as in Kafka's container images."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .kafka_logins import VARIABLES as LOGIN_VARIABLES
from .kafka_logins import read_logins
from .property import ConfigError
from .sources import read_environment

PREFIX = "KAFKA_"
BITNAMI_PREFIX = "KAFKA_CFG_"
CLUSTER_ID = "CLUSTER_ID"
CREATE_TOPICS = "KAFKA_CREATE_TOPICS"
LOG_LEVEL = "KAFKA_LOG4J_ROOT_LOGLEVEL"
# Variables for the JVM or the image, which are not broker settings.
IGNORED = frozenset(
    {
        "KAFKA_ENABLE_KRAFT",
        "KAFKA_GC_LOG_OPTS",
        "KAFKA_HEAP_OPTS",
        "KAFKA_JMX_HOSTNAME",
        "KAFKA_JMX_OPTS",
        "KAFKA_JMX_PORT",
        "KAFKA_JVM_PERFORMANCE_OPTS",
        "KAFKA_KRAFT_CLUSTER_ID",
        "KAFKA_LOG4J_LOGGERS",
        "KAFKA_LOG4J_OPTS",
        "KAFKA_TOOLS_LOG4J_LOGLEVEL",
        "KAFKA_VERSION",
    }
)

# Settings from before Kafka 3.0: advertised host, advertised port, and port to listen on.
_BEFORE_LISTENERS = ("advertised.host.name", "advertised.port", "port")
DEFAULT_PORT = "9092"
_LOG_LEVELS = {"ALL": "debug", "TRACE": "debug", "WARN": "warning", "FATAL": "critical"}


class DeclaredTopic(NamedTuple):
    """A topic from ``KAFKA_CREATE_TOPICS``; -1 means the broker's default."""

    name: str
    partitions: int
    replication_factor: int
    configs: dict[str, str]


class KafkaEnvironment(NamedTuple):
    """The settings and options found. ``log_level`` is a Python level name, or empty if unset."""

    values: dict[str, str]
    cluster_id: str | None
    log_level: str
    topics: list[DeclaredTopic]


def read_kafka_environment(environ: Mapping[str, str]) -> KafkaEnvironment:
    """Read ``KAFKA_*`` and Bitnami's ``KAFKA_CFG_*``; the latter takes precedence.

    After the prefix, ``_`` means a dot, ``__`` an underscore, ``___`` a dash.

    Raises:
        ConfigError: The topics, users or cluster ID are invalid.
    """
    special = {CREATE_TOPICS, LOG_LEVEL, *LOGIN_VARIABLES, *IGNORED}
    plain = {
        name: value
        for name, value in environ.items()
        if name not in special and not name.startswith(BITNAMI_PREFIX)
    }
    cluster_id = environ.get(CLUSTER_ID) or None
    if cluster_id is not None and not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", cluster_id):
        raise ConfigError(
            f"{CLUSTER_ID}: invalid cluster ID {cluster_id!r}; expected one such as "
            "5L6g3nShT-eMCtK--X86sw"
        )
    level = environ.get(LOG_LEVEL, "").upper()
    return KafkaEnvironment(
        values=read_logins(environ)
        | read_environment(plain, PREFIX)
        | read_environment(environ, BITNAMI_PREFIX),
        cluster_id=cluster_id,
        log_level=_LOG_LEVELS.get(level, level.lower()),
        topics=[
            _topic(text) for text in re.split(r"[,\s]+", environ.get(CREATE_TOPICS, "")) if text
        ],
    )


def _topic(text: str) -> DeclaredTopic:
    """Parse NAME:PARTITIONS:REPLICAS[:CLEANUP_POLICY]."""
    name, *rest = text.split(":")
    numbers, policy = rest[:2], rest[2:]
    if not name or len(policy) > 1 or not all(each.isdecimal() for each in numbers):
        raise ConfigError(
            f"{CREATE_TOPICS}: invalid topic {text!r}; expected "
            "NAME:PARTITIONS:REPLICAS[:CLEANUP_POLICY]"
        )
    partitions, factor = [*map(int, numbers), -1, -1][:2]
    return DeclaredTopic(name, partitions, factor, {"cleanup.policy": policy[0]} if policy else {})


def with_listeners(values: dict[str, str], others: Iterable[Mapping[str, str]]) -> dict[str, str]:
    """Add `listeners` on all interfaces at the advertised ports, if `listeners` is unset.

    The advertised address may also be given by `advertised.host.name` and `advertised.port`, as
    before Kafka 3.0 and in wurstmeister's image.
    """
    host, port, bound = (values.pop(name, None) for name in _BEFORE_LISTENERS)
    if bound and not bound.isdecimal():
        bound = None  # Docker and Kubernetes set KAFKA_PORT=tcp://... for a service named kafka
    if any("listeners" in each for each in (values, *others)):
        return values
    advertised = values.get("advertised.listeners")
    if advertised is None and (host or port):
        listeners = {"listeners": f"PLAINTEXT://:{bound or port or DEFAULT_PORT}"}
        address = f"PLAINTEXT://{host or ''}:{port or bound or DEFAULT_PORT}"
        return values | listeners | {"advertised.listeners": address}
    if advertised is None:
        return values
    return values | {"listeners": re.sub(r"://(\[[^\]]*\]|[^:,]*):", "://0.0.0.0:", advertised)}
