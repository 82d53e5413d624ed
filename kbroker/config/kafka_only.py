"""Broker settings of Apache Kafka 4.4 that kbroker accepts by name only.

kbroker accepts these settings wherever Kafka accepts them, stores and shows them. They have no effect.
Each line of the tables has a name, a type and a default: `""` is empty, none is unset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import NamedTuple

from .property import SettingEffect, Type


class KafkaOnlySetting(NamedTuple):
    """A Kafka setting that kbroker accepts by name only.

    Attributes:
        effect: Why the setting has no effect.
        dynamic: True if it is dynamic in Kafka.
        type: Kafka's type of the value; None if Kafka 4.4 lacks the setting.
        default: Kafka's default; None if unset.
    """

    effect: SettingEffect
    dynamic: bool
    type: Type | None = None
    default: str | None = None

    @property
    def sensitive(self) -> bool:
        """True if the value must never be shown."""
        return self.type is Type.PASSWORD


# Static settings of features that kbroker does not implement yet.
_LATER = """
client.quota.callback.class CLASS
early.start.listeners LIST
group.coordinator.rebalance.protocols LIST classic,consumer,streams
replica.high.watermark.checkpoint.interval.ms LONG 5000
replica.socket.receive.buffer.bytes INT 65536
replication.quota.window.num INT 11
replication.quota.window.size.seconds INT 1
sasl.client.callback.handler.class CLASS
sasl.login.callback.handler.class CLASS
sasl.login.class CLASS
sasl.login.connect.timeout.ms INT
sasl.login.read.timeout.ms INT
sasl.login.retry.backoff.max.ms LONG 10000
sasl.login.retry.backoff.ms LONG 100
sasl.mechanism.controller.protocol STRING GSSAPI
sasl.oauthbearer.assertion.algorithm STRING RS256
sasl.oauthbearer.assertion.claim.aud STRING
sasl.oauthbearer.assertion.claim.exp.seconds INT 300
sasl.oauthbearer.assertion.claim.iss STRING
sasl.oauthbearer.assertion.claim.jti.include BOOLEAN false
sasl.oauthbearer.assertion.claim.nbf.seconds INT 60
sasl.oauthbearer.assertion.claim.sub STRING
sasl.oauthbearer.assertion.file STRING
sasl.oauthbearer.assertion.private.key.file STRING
sasl.oauthbearer.assertion.private.key.passphrase PASSWORD
sasl.oauthbearer.assertion.template.file STRING
sasl.oauthbearer.jwt.retriever.class CLASS \
org.apache.kafka.common.security.oauthbearer.DefaultJwtRetriever
security.providers STRING
ssl.allow.dn.changes BOOLEAN false
ssl.allow.san.changes BOOLEAN false
transaction.two.phase.commit.enable BOOLEAN false
"""

# Dynamic settings of features that kbroker does not implement yet.
_LATER_DYNAMIC = """
log.cleaner.io.buffer.load.factor DOUBLE 0.9
log.cleaner.io.buffer.size INT 524288
log.cleaner.io.max.bytes.per.second DOUBLE 1.7976931348623157E308
log.cleaner.threads INT 1
sasl.kerberos.kinit.cmd STRING /usr/bin/kinit
sasl.kerberos.min.time.before.relogin LONG 60000
sasl.kerberos.principal.to.local.rules LIST DEFAULT
sasl.kerberos.service.name STRING
sasl.kerberos.ticket.renew.jitter DOUBLE 0.05
sasl.kerberos.ticket.renew.window.factor DOUBLE 0.8
sasl.login.refresh.buffer.seconds SHORT 300
sasl.login.refresh.min.period.seconds SHORT 60
sasl.login.refresh.window.factor DOUBLE 0.8
sasl.login.refresh.window.jitter DOUBLE 0.05
ssl.keymanager.algorithm STRING SunX509
ssl.provider STRING
ssl.secure.random.implementation STRING
ssl.trustmanager.algorithm STRING PKIX
"""

# Static settings without a meaning in kbroker.
_NONE = """
add.partitions.to.txn.retry.backoff.max.ms INT 100
add.partitions.to.txn.retry.backoff.ms INT 20
alter.config.policy.class.name CLASS
alter.log.dirs.replication.quota.window.num INT 11
alter.log.dirs.replication.quota.window.size.seconds INT 1
controller.quorum.append.linger.ms INT 25
controller.quorum.auto.join.enable BOOLEAN false
controller.quorum.election.backoff.max.ms INT 1000
controller.quorum.election.timeout.ms INT 1000
controller.quorum.fetch.max.bytes INT 1048576
controller.quorum.fetch.snapshot.max.bytes INT 1048576
controller.quorum.fetch.timeout.ms INT 2000
controller.quorum.request.timeout.ms INT 2000
controller.quorum.retry.backoff.ms INT 20
controller.socket.timeout.ms INT 30000
create.topic.policy.class.name CLASS
delete.records.purgatory.purge.interval.requests INT 1
fetch.purgatory.purge.interval.requests INT 1000
group.coordinator.append.linger.ms INT -1
group.coordinator.background.threads INT 2
group.coordinator.threads INT 4
initial.broker.registration.timeout.ms INT 60000
kafka.metrics.polling.interval.secs INT 10
kafka.metrics.reporters LIST ""
log.dir.failure.timeout.ms LONG 30000
metadata.log.dir STRING
metadata.log.max.record.bytes.between.snapshots LONG 20971520
metadata.log.max.snapshot.interval.ms LONG 3600000
metadata.log.segment.bytes INT 1073741824
metadata.log.segment.ms LONG 604800000
metadata.max.idle.interval.ms INT 500
metadata.max.retention.bytes LONG 104857600
metadata.max.retention.ms LONG 604800000
metrics.num.samples INT 2
metrics.recording.level STRING INFO
metrics.sample.window.ms LONG 30000
num.replica.alter.log.dirs.threads INT
offsets.load.buffer.size INT 5242880
offsets.topic.compression.codec INT 0
producer.purgatory.purge.interval.requests INT 1000
remote.log.manager.copy.quota.window.num INT 11
remote.log.manager.copy.quota.window.size.seconds INT 1
remote.log.manager.fetch.quota.window.num INT 11
remote.log.manager.fetch.quota.window.size.seconds INT 1
remote.log.manager.task.interval.ms LONG 30000
remote.log.manager.thread.pool.size INT 2
remote.log.metadata.custom.metadata.max.bytes INT 128
remote.log.metadata.manager.class.name STRING \
org.apache.kafka.server.log.remote.metadata.storage.TopicBasedRemoteLogMetadataManager
remote.log.metadata.manager.class.path STRING
remote.log.metadata.manager.impl.prefix STRING rlmm.config.
remote.log.metadata.manager.listener.name STRING
remote.log.reader.max.pending.tasks INT 100
remote.log.storage.manager.class.name STRING
remote.log.storage.manager.class.path STRING
remote.log.storage.manager.impl.prefix STRING rsm.config.
remote.log.storage.system.enable BOOLEAN false
request.timeout.ms INT 30000
share.coordinator.append.linger.ms INT -1
share.coordinator.load.buffer.size INT 5242880
share.coordinator.state.topic.compression.codec INT 0
share.coordinator.threads INT 1
share.coordinator.write.timeout.ms INT 5000
share.fetch.purgatory.purge.interval.requests INT 1000
socket.connection.setup.timeout.max.ms LONG 30000
socket.connection.setup.timeout.ms LONG 10000
transaction.abort.timed.out.transaction.cleanup.interval.ms INT 10000
transaction.state.log.load.buffer.size INT 5242880
"""

# Dynamic settings without a meaning in kbroker.
_NONE_DYNAMIC = """
config.providers LIST ""
follower.fetch.last.tiered.offset.enable BOOLEAN false
group.coordinator.cached.buffer.max.bytes INT 1048588
metric.reporters LIST org.apache.kafka.common.metrics.JmxReporter
remote.fetch.max.wait.ms INT 500
remote.list.offsets.request.timeout.ms LONG 30000
remote.log.index.file.cache.total.size.bytes LONG 1073741824
remote.log.manager.copier.thread.pool.size INT 10
remote.log.manager.copy.max.bytes.per.second LONG 9223372036854775807
remote.log.manager.expiration.thread.pool.size INT 10
remote.log.manager.fetch.max.bytes.per.second LONG 9223372036854775807
remote.log.manager.follower.thread.pool.size INT 2
remote.log.reader.threads INT 10
share.coordinator.cached.buffer.max.bytes INT 1048588
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
    for table, effect, dynamic in (
        (_LATER, SettingEffect.LATER, False),
        (_LATER_DYNAMIC, SettingEffect.LATER, True),
        (_NONE, SettingEffect.NONE, False),
        (_NONE_DYNAMIC, SettingEffect.NONE, True),
        (_BEFORE_4, SettingEffect.NONE, False),
    ):
        for line in table.split("\n"):
            if line:
                name, *rest = line.split(" ")
                yield name, _parse_setting(effect, dynamic, *rest)


def _parse_setting(
    effect: SettingEffect, dynamic: bool, type_name: str = "", default: str | None = None
) -> KafkaOnlySetting:
    """Return the setting of one line of a table."""
    kind = Type[type_name] if type_name else None
    return KafkaOnlySetting(effect, dynamic, kind, "" if default == '""' else default)


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
