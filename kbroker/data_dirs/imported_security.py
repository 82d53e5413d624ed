"""Import of SCRAM users, ACLs and quotas from the metadata log of a stopped Kafka.

Delegation tokens are not imported: their passwords depend on a setting of the brokers, and they are
short-lived.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import islice
from uuid import UUID

from kbroker.cluster.acl_changes import add_acls
from kbroker.cluster.cluster import SCRAM_USERS_AT_ONCE, Cluster
from kbroker.cluster.quota_changes import AT_ONCE, Alteration, alter_quotas
from kbroker.protocol.metadata_log import (
    AccessControlEntryRecord,
    ClientQuotaRecord,
    DelegationTokenRecord,
    RemoveAccessControlEntryRecord,
    RemoveDelegationTokenRecord,
    RemoveUserScramCredentialRecord,
    SecurityRecord,
    UserScramCredentialRecord,
)
from kbroker.security.acls import (
    Acl,
    AclOperation,
    AclPermission,
    AclResourceType,
    Pattern,
    PatternType,
)
from kbroker.security.quotas import BadQuota, Entity, check_entity, check_value, text_of
from kbroker.security.scram import ScramCredential, ScramMechanism

# The entity of a quota: pairs of type and name, sorted by type.
EntityKey = tuple[tuple[str, str | None], ...]


@dataclass(slots=True)
class ImportedSecurity:
    """Users, ACLs, quotas and tokens after the replay of metadata records."""

    users: dict[str, dict[ScramMechanism, ScramCredential]] = field(default_factory=dict)
    acls: dict[UUID, Acl] = field(default_factory=dict)
    quotas: dict[EntityKey, dict[str, float]] = field(default_factory=dict)
    tokens: set[str] = field(default_factory=set)

    def replay(self, record: SecurityRecord) -> None:
        """Apply one record."""
        match record:
            case UserScramCredentialRecord():
                self._put_user(record)
            case RemoveUserScramCredentialRecord():
                self._remove_user(record)
            case AccessControlEntryRecord():
                self._put_acl(record)
            case RemoveAccessControlEntryRecord():
                self.acls.pop(record.id, None)
            case ClientQuotaRecord():
                self._replay_quota(record)
            case DelegationTokenRecord():
                self.tokens.add(record.token_id)
            case RemoveDelegationTokenRecord():
                self.tokens.discard(record.token_id)

    def _put_user(self, record: UserScramCredentialRecord) -> None:
        mechanism = ScramMechanism.numbered(record.mechanism)
        if mechanism is not None:
            keys = bytes(record.salt), bytes(record.stored_key), bytes(record.server_key)
            credential = ScramCredential(*keys, record.iterations)
            self.users.setdefault(record.name, {})[mechanism] = credential

    def _remove_user(self, record: RemoveUserScramCredentialRecord) -> None:
        mechanism = ScramMechanism.numbered(record.mechanism)
        left = {
            each: credential
            for each, credential in self.users.pop(record.name, {}).items()
            if each is not mechanism
        }
        if left:
            self.users[record.name] = left

    def _put_acl(self, record: AccessControlEntryRecord) -> None:
        self.acls[record.id] = Acl(
            Pattern(
                AclResourceType(record.resource_type),
                PatternType(record.pattern_type),
                record.resource_name,
            ),
            record.principal,
            record.host,
            AclOperation(record.operation),
            AclPermission(record.permission_type),
        )

    def _replay_quota(self, record: ClientQuotaRecord) -> None:
        entity = tuple(sorted((each.entity_type, each.entity_name) for each in record.entity))
        values = self.quotas.setdefault(entity, {})
        if record.remove:
            values.pop(record.key, None)
        else:
            values[record.key] = record.value
        if not values:
            del self.quotas[entity]

    def remove_unsupported(self) -> Iterator[str]:
        """Remove quotas that kbroker does not support; yield a sentence about each omitted entry."""
        for entity, values in [*self.quotas.items()]:
            for key, value in [*values.items()]:
                try:
                    check_entity(dict(entity))
                    check_value(dict(entity), key, value)
                except BadQuota as error:
                    del values[key]
                    yield f"quota {key}={value:g} of {text_of(dict(entity))}: {error}"
            if not values:
                del self.quotas[entity]
        if self.tokens:
            yield f"{len(self.tokens)} delegation tokens: create new ones"

    async def write(self, cluster: Cluster, *, cause: str) -> None:
        """Write everything to the metadata of a cluster; existing entries stay or are replaced.

        Raises:
            KafkaError: A limit of the cluster is exceeded.
        """
        users = iter(self.users.items())
        while some := dict(islice(users, SCRAM_USERS_AT_ONCE)):
            await cluster.put_scram_users(some, cause=cause)
        await add_acls(cluster, self.acls.values(), cause=cause)
        quotas = iter(self.quotas.items())
        while rest := [*islice(quotas, AT_ONCE)]:
            changes: list[tuple[Entity, Alteration]] = [(dict(key), values) for key, values in rest]
            await alter_quotas(cluster, changes, cause=cause)
