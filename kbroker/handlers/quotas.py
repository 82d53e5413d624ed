"""DescribeClientQuotas, AlterClientQuotas (KIP-546)."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple, TypeAlias

from kbroker.cluster.client_quotas import ClientQuota, key_of
from kbroker.cluster.quota_changes import AT_ONCE, Alteration, alter_quotas, check_quota_limit
from kbroker.coordinator import some_of
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    DescribeClientQuotasRequest,
    DescribeClientQuotasResponse,
)
from kbroker.security.acls import AclOperation
from kbroker.security.quotas import (
    ENTITY_TYPES,
    IP,
    BadQuota,
    Entity,
    QuotaKey,
    check_entity,
    check_value,
    text_of,
)

from .context import Context
from .registry import handles

logger = logging.getLogger(__name__)

# Maximum number of bytes of a user name or client ID. All nodes keep quotas in memory.
NAME_BYTES_MAX = 512
# Match types of a filter component: exact name, default entity, any entity of the type.
EXACT, DEFAULT, SPECIFIED = 0, 1, 2

Component: TypeAlias = DescribeClientQuotasRequest.Component
Row: TypeAlias = AlterClientQuotasRequest.Entry


class Filter(NamedTuple):
    """Filter of entities.

    Attributes:
        exact: Required names by entity type; None is the default entity.
        types: Entity types that must be present with any name.
        strict: Entities must have no other component.
    """

    exact: Mapping[str, str | None]
    types: frozenset[str]
    strict: bool

    def matches(self, entity: Entity) -> bool:
        """Return True if an entity matches the filter."""
        if self.strict and len(entity) != len(self.exact) + len(self.types):
            return False
        named = (kind in entity and entity[kind] == name for kind, name in self.exact.items())
        return all(named) and all(kind in entity for kind in self.types)


@handles(ApiKey.DESCRIBE_CLIENT_QUOTAS, versions="0-1", read_only=True)
async def describe_client_quotas(
    ctx: Context, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """List the quotas of all entities that match a filter (KIP-546).

    Errors: INVALID_REQUEST for a contradictory filter, UNSUPPORTED_VERSION for an unknown entity
    type.
    """
    try:
        ctx.require_cluster(AclOperation.DESCRIBE_CONFIGS)
        wanted = _filter(request)
    except KafkaError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message)
    entries = []
    async for quota in ctx.time_slice.each(ctx.node.cluster.client_quotas.all):
        if wanted.matches(quota.entity):
            entries.append(_entry_row(quota))
    return DescribeClientQuotasResponse(entries=entries)


def _filter(request: DescribeClientQuotasRequest) -> Filter:
    """Return the filter of a request.

    Raises:
        KafkaError: The filter is invalid.
    """
    exact: dict[str, str | None] = {}
    types: set[str] = set()
    for component in request.components:
        kind = component.entity_type
        if not kind:
            raise _invalid_request("Invalid empty entity type.")
        if kind in exact or kind in types:
            raise _invalid_request(
                f"Entity type {kind} cannot appear more than once in the filter."
            )
        if kind not in ENTITY_TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        _check_match(component)
        if component.match_type == SPECIFIED:
            types.add(kind)
        else:
            exact[kind] = component.match
    asked = {*exact, *types}
    if IP in asked and len(asked) > 1:
        raise _invalid_request("A filter for ip cannot contain user or client-id")
    return Filter(exact, frozenset(types), request.strict)


def _check_match(component: Component) -> None:
    """Check the match type of a component, and that only an exact match has a name."""
    if component.match_type not in (EXACT, DEFAULT, SPECIFIED):
        raise _invalid_request(f"Unknown match type {component.match_type}")
    if component.match_type == EXACT and component.match is None:
        raise _invalid_request("An exact match needs a name")
    if component.match_type != EXACT and component.match is not None:
        raise _invalid_request("Only an exact match has a name")


def _invalid_request(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _entry_row(quota: ClientQuota) -> DescribeClientQuotasResponse.Entry:
    answer = DescribeClientQuotasResponse
    return answer.Entry(
        entity=[
            answer.Entity(entity_type=kind, entity_name=name) for kind, name in quota.entity.items()
        ],
        values=[answer.Value(key=key, value=value) for key, value in quota.values.items()],
    )


class Outcome(NamedTuple):
    """Planned changes of one entity, or their error."""

    row: Row
    alteration: Alteration = {}  # noqa: RUF012  # a mapping that nobody writes
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None

    def with_error(self, error: KafkaError) -> Outcome:
        """Return the outcome with an error."""
        return Outcome(self.row, code=error.code, message=error.message)


@handles(ApiKey.ALTER_CLIENT_QUOTAS, versions="0-1")
async def alter_client_quotas(
    ctx: Context, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """Set and remove quotas of entities; quotas that are not named keep their value (KIP-546).

    Changes apply at once, also to open connections.

    Errors: INVALID_REQUEST for an invalid, too long or duplicate entity, for a quota key that is
    unknown, duplicate or not applicable to the entity, and for an invalid value. POLICY_VIOLATION
    if the limit of entities is exceeded.

    Differs from Kafka: a duplicate entity is not changed at all. Kafka applies its first row and
    returns an error. Host names are not resolved.
    """
    outcomes: dict[str, Outcome] = {}
    denied: KafkaError | None = None
    try:
        ctx.require_cluster(AclOperation.ALTER_CONFIGS)
    except KafkaError as error:
        denied = error
    async for row in ctx.time_slice.each(request.entries):
        key = _key(row, len(outcomes))
        if denied is not None:
            outcomes[key] = Outcome(row).with_error(denied)
        elif key in outcomes:
            outcomes[key] = Outcome(row).with_error(_invalid_request("Ignoring duplicate entity"))
        else:
            outcomes[key] = await _plan_changes(ctx, row)
    if denied is None:
        await _apply(ctx, outcomes, validate_only=request.validate_only)
    answer = AlterClientQuotasResponse
    return answer(
        entries=[
            answer.Entry(
                error_code=outcome.code,
                error_message=outcome.message,
                entity=[
                    answer.Entity(entity_type=each.entity_type, entity_name=each.entity_name)
                    async for each in ctx.time_slice.each(outcome.row.entity)
                ],
            )
            async for outcome in ctx.time_slice.each(outcomes.values())
        ]
    )


def _key(row: Row, count: int) -> str:
    """Return a key of a row's entity. An entity with too many components gets a unique key."""
    if len(row.entity) > len(ENTITY_TYPES):
        return str(count)
    return key_of({each.entity_type: each.entity_name for each in row.entity})


async def _plan_changes(ctx: Context, row: Row) -> Outcome:
    """Return the planned changes of a row, or their error."""
    alteration: dict[str, float | None] = {}
    try:
        entity = _entity(row)
        async for op in ctx.time_slice.each(row.ops):
            if op.key in alteration:
                raise BadQuota(f"Duplicate quota key {op.key}")
            if not op.remove:
                check_value(entity, op.key, op.value)
            alteration[op.key] = None if op.remove else op.value
    except BadQuota as error:
        return Outcome(row).with_error(_invalid_request(str(error)))
    return Outcome(row, alteration)


def _entity(row: Row) -> Entity:
    """Return the entity of a row.

    Raises:
        BadQuota: The entity is invalid.
    """
    entity = {each.entity_type: each.entity_name for each in row.entity[: len(ENTITY_TYPES)]}
    if len(entity) < len(row.entity):
        raise BadQuota("Invalid client quota entity: it has two components of one type")
    check_entity(entity)
    if any(len((name or "").encode()) > NAME_BYTES_MAX for name in entity.values()):
        raise BadQuota(f"Names of a client quota entity have at most {NAME_BYTES_MAX} bytes")
    return entity


async def _apply(ctx: Context, outcomes: dict[str, Outcome], *, validate_only: bool) -> None:
    """Store the planned changes, several entities per transaction, and record errors."""
    cluster = ctx.node.cluster
    cause = f"AlterClientQuotas by {ctx.client_id}"
    left: Iterable[str] = iter(
        [key for key, each in outcomes.items() if each.alteration and not each.code]
    )
    while keys := [*islice(left, AT_ONCE)]:
        changes = [(_entity(outcomes[key].row), outcomes[key].alteration) for key in keys]
        try:
            if validate_only:
                check_quota_limit(cluster, sum(key not in cluster.client_quotas for key in keys))
            else:
                await alter_quotas(cluster, changes, cause=cause)
                logger.info("%s: %s", cause, some_of([text_of(entity) for entity, _ in changes]))
                _audit(ctx, changes)
        except KafkaError as error:
            outcomes.update((key, outcomes[key].with_error(error)) for key in keys)
        await ctx.time_slice.pause()


def _audit(ctx: Context, changes: Iterable[tuple[Entity, Alteration]]) -> None:
    """Write changes to the audit log."""
    for entity, alteration in changes:
        values = {key: value for key, value in alteration.items() if value is not None}
        removed = [key for key in alteration if key not in values]
        changed = [f"{key}={value:.12g}" for key, value in values.items()]
        changed += [f"no {key}" for key in removed if key in [*QuotaKey]]
        ctx.node.audit.log_change(
            ctx.peer.client,
            f"quotas of {text_of(entity)}: {', '.join(changed)}",
            entity=dict(entity),
            quotas=values,
        )
