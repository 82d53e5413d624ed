"""Broker settings of Apache Kafka 4.4 that kbroker accepts by name only.

kbroker accepts these settings wherever Kafka accepts them, stores and shows them. They have no effect.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from .property import SettingEffect


class KafkaOnlySetting(NamedTuple):
    """A Kafka setting that kbroker accepts by name only; `dynamic` is True if it is so in Kafka."""

    effect: SettingEffect
    dynamic: bool


# Static settings of features that kbroker does not implement yet.
_LATER = """
client.quota.callback.class
early.start.listeners
group.coordinator.rebalance.protocols
replica.high.watermark.checkpoint.interval.ms
replica.socket.receive.buffer.bytes
replication.quota.window.num
replication.quota.window.size.seconds
sasl.client.callback.handler.class
sasl.login.callback.handler.class
sasl.login.class
sasl.login.connect.timeout.ms
sasl.login.read.timeout.ms
sasl.login.retry.backoff.max.ms
sasl.login.retry.backoff.ms
sasl.mechanism.controller.protocol
sasl.oauthbearer.assertion.algorithm
sasl.oauthbearer.assertion.claim.aud
sasl.oauthbearer.assertion.claim.exp.seconds
sasl.oauthbearer.assertion.claim.iss
sasl.oauthbearer.assertion.claim.jti.include
sasl.oauthbearer.assertion.claim.nbf.seconds
sasl.oauthbearer.assertion.claim.sub
sasl.oauthbearer.assertion.file
sasl.oauthbearer.assertion.private.key.file
sasl.oauthbearer.assertion.private.key.passphrase
sasl.oauthbearer.assertion.template.file
sasl.oauthbearer.jwt.retriever.class
security.providers
ssl.allow.dn.changes
ssl.allow.san.changes
transaction.two.phase.commit.enable
"""

# Dynamic settings of features that kbroker does not implement yet.
_LATER_DYNAMIC = """
log.cleaner.io.buffer.load.factor
log.cleaner.io.buffer.size
log.cleaner.io.max.bytes.per.second
log.cleaner.threads
sasl.kerberos.kinit.cmd
sasl.kerberos.min.time.before.relogin
sasl.kerberos.principal.to.local.rules
sasl.kerberos.service.name
sasl.kerberos.ticket.renew.jitter
sasl.kerberos.ticket.renew.window.factor
sasl.login.refresh.buffer.seconds
sasl.login.refresh.min.period.seconds
sasl.login.refresh.window.factor
sasl.login.refresh.window.jitter
ssl.keymanager.algorithm
ssl.provider
ssl.secure.random.implementation
ssl.trustmanager.algorithm
"""

# Static settings without a meaning in kbroker.
_NONE = """
add.partitions.to.txn.retry.backoff.max.ms
add.partitions.to.txn.retry.backoff.ms
alter.config.policy.class.name
alter.log.dirs.replication.quota.window.num
alter.log.dirs.replication.quota.window.size.seconds
controller.quorum.append.linger.ms
controller.quorum.auto.join.enable
controller.quorum.election.backoff.max.ms
controller.quorum.election.timeout.ms
controller.quorum.fetch.max.bytes
controller.quorum.fetch.snapshot.max.bytes
controller.quorum.fetch.timeout.ms
controller.quorum.request.timeout.ms
controller.quorum.retry.backoff.ms
controller.socket.timeout.ms
create.topic.policy.class.name
delete.records.purgatory.purge.interval.requests
fetch.purgatory.purge.interval.requests
group.coordinator.append.linger.ms
group.coordinator.background.threads
group.coordinator.threads
initial.broker.registration.timeout.ms
kafka.metrics.polling.interval.secs
kafka.metrics.reporters
log.dir.failure.timeout.ms
metadata.log.dir
metadata.log.max.record.bytes.between.snapshots
metadata.log.max.snapshot.interval.ms
metadata.log.segment.bytes
metadata.log.segment.ms
metadata.max.idle.interval.ms
metadata.max.retention.bytes
metadata.max.retention.ms
metrics.num.samples
metrics.recording.level
metrics.sample.window.ms
num.replica.alter.log.dirs.threads
offsets.load.buffer.size
offsets.topic.compression.codec
producer.purgatory.purge.interval.requests
remote.log.manager.copy.quota.window.num
remote.log.manager.copy.quota.window.size.seconds
remote.log.manager.fetch.quota.window.num
remote.log.manager.fetch.quota.window.size.seconds
remote.log.manager.task.interval.ms
remote.log.manager.thread.pool.size
remote.log.metadata.custom.metadata.max.bytes
remote.log.metadata.manager.class.name
remote.log.metadata.manager.class.path
remote.log.metadata.manager.impl.prefix
remote.log.metadata.manager.listener.name
remote.log.reader.max.pending.tasks
remote.log.storage.manager.class.name
remote.log.storage.manager.class.path
remote.log.storage.manager.impl.prefix
remote.log.storage.system.enable
request.timeout.ms
share.coordinator.append.linger.ms
share.coordinator.load.buffer.size
share.coordinator.state.topic.compression.codec
share.coordinator.threads
share.coordinator.write.timeout.ms
share.fetch.purgatory.purge.interval.requests
socket.connection.setup.timeout.max.ms
socket.connection.setup.timeout.ms
transaction.abort.timed.out.transaction.cleanup.interval.ms
transaction.state.log.load.buffer.size
"""

# Dynamic settings without a meaning in kbroker.
_NONE_DYNAMIC = """
config.providers
follower.fetch.last.tiered.offset.enable
group.coordinator.cached.buffer.max.bytes
metric.reporters
remote.fetch.max.wait.ms
remote.list.offsets.request.timeout.ms
remote.log.index.file.cache.total.size.bytes
remote.log.manager.copier.thread.pool.size
remote.log.manager.copy.max.bytes.per.second
remote.log.manager.expiration.thread.pool.size
remote.log.manager.fetch.max.bytes.per.second
remote.log.manager.follower.thread.pool.size
remote.log.reader.threads
share.coordinator.cached.buffer.max.bytes
"""

# Settings that Kafka 4.0 removed, but that existing configuration files contain.
_BEFORE_4 = """
broker.id.generation.enable
control.plane.listener.name
inter.broker.protocol.version
leader.imbalance.per.broker.percentage
log.message.downconversion.enable
log.message.format.version
log.message.timestamp.difference.max.ms
offsets.commit.required.acks
reserved.broker.max.id
"""
# Prefix of the settings of a single listener: `listener.name.NAME.SETTING` (KIP-103).
LISTENER_PREFIX = "listener.name."
_TOKEN_SETTINGS = (
    "sasl.oauthbearer.allow.unverified.",
    "sasl.oauthbearer.clock.",
    "sasl.oauthbearer.expected.",
    "sasl.oauthbearer.jwks.",
    "sasl.oauthbearer.jwt.validator.class",
    "sasl.oauthbearer.sub.claim.name",
    "sasl.oauthbearer.token.endpoint.url",
    "sasl.oauthbearer.client.credentials.",
    "sasl.oauthbearer.scope",
)
_AUTHENTICATION_SETTINGS = (
    "connections.max.reauth.ms",
    "sasl.server.callback.handler.class",
)
# Prefixes of settings that kbroker applies to a single listener.
_LISTENER_SETTINGS = (
    "max.connection.creation.rate",
    *_AUTHENTICATION_SETTINGS,
    *(
        f"{mechanism}.{name}"
        for mechanism in ("plain", "scram-sha-256", "scram-sha-512", "oauthbearer")
        for name in _AUTHENTICATION_SETTINGS
    ),
    *_TOKEN_SETTINGS,
    *(f"oauthbearer.{name}" for name in _TOKEN_SETTINGS),
    "oauthbearer.sasl.jaas.config",
    "sasl.enabled.mechanisms",
    "sasl.mechanism.inter.broker.protocol",
    "sasl.jaas.config",
    "plain.sasl.jaas.config",
    "scram-sha-256.sasl.jaas.config",
    "scram-sha-512.sasl.jaas.config",
    "ssl.client.auth",
    "ssl.cipher.suites",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.principal.mapping.rules",
    "ssl.key.password",
    "ssl.keystore.",
    "ssl.truststore.",
)

# Prefixes of settings of features that kbroker lacks; the full names cannot be enumerated.
_NONE_PREFIXES = ("confluent.", "password.encoder.", "rlmm.config.", "rsm.config.", "zookeeper.")


def _all_settings() -> Iterator[tuple[str, KafkaOnlySetting]]:
    for names, effect, dynamic in (
        (_LATER, SettingEffect.LATER, False),
        (_LATER_DYNAMIC, SettingEffect.LATER, True),
        (_NONE, SettingEffect.NONE, False),
        (_NONE_DYNAMIC, SettingEffect.NONE, True),
        (_BEFORE_4, SettingEffect.NONE, False),
    ):
        for name in names.split():
            yield name, KafkaOnlySetting(effect, dynamic)


# Sorted by name.
KAFKA_ONLY: Mapping[str, KafkaOnlySetting] = MappingProxyType(dict(sorted(_all_settings())))


def find_kafka_only(name: str) -> KafkaOnlySetting | None:
    """Return the entry of a setting that is not in kbroker's table, or None if Kafka lacks it."""
    if name.startswith(LISTENER_PREFIX):
        rest = name.removeprefix(LISTENER_PREFIX).partition(".")[2]
        if rest.startswith(_LISTENER_SETTINGS):
            return KafkaOnlySetting(SettingEffect.APPLIED, True)
        return KafkaOnlySetting(SettingEffect.LATER, True)
    if name.startswith(_NONE_PREFIXES) or ".jmx." in name:
        return KafkaOnlySetting(SettingEffect.NONE, False)
    return KAFKA_ONLY.get(name)
