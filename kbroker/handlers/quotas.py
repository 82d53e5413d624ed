"""DescribeClientQuotas, AlterClientQuotas: how much clients may take of a broker."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from itertools import islice
from typing import NamedTuple, TypeAlias

from kbroker.cluster.client_quotas import ClientQuota, key_of
from kbroker.cluster.quota_changes import AT_ONCE, Alteration, alter_quotas, check_room
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

NAME_BYTES_MAX = 512
"""Of a user or a client id; they stay in memory."""
EXACT, DEFAULT, SPECIFIED = 0, 1, 2
"""Match types of a filter: a name, the default, any that there is."""

Component: TypeAlias = DescribeClientQuotasRequest.Component
Row: TypeAlias = AlterClientQuotasRequest.Entry


class Filter(NamedTuple):
    """Which entities are asked for: those with these names, and with anything of these types."""

    exact: Mapping[str, str | None]
    types: frozenset[str]
    strict: bool

    def takes(self, entity: Entity) -> bool:
        """Whether an entity is among them; with `strict` it has nothing else."""
        if self.strict and len(entity) != len(self.exact) + len(self.types):
            return False
        named = (kind in entity and entity[kind] == name for kind, name in self.exact.items())
        return all(named) and all(kind in entity for kind in self.types)


@handles(ApiKey.DESCRIBE_CLIENT_QUOTAS, versions="0-1", only_looks=True)
async def describe_client_quotas(
    ctx: Context, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    """Behaviour: the quotas of all entities that match each component of a filter, and with `strict`
    have no other part (KIP-546).

    Errors: INVALID_REQUEST for a filter that contradicts itself, UNSUPPORTED_VERSION for a type of
    entity that there is not.
    """
    try:
        ctx.require_cluster(AclOperation.DESCRIBE_CONFIGS)
        wanted = _filter(request)
    except KafkaError as error:
        return DescribeClientQuotasResponse(error_code=error.code, error_message=error.message)
    entries = []
    async for quota in ctx.time_slice.each(ctx.node.cluster.client_quotas.all):
        if wanted.takes(quota.entity):
            entries.append(_described(quota))
    return DescribeClientQuotasResponse(entries=entries)


def _filter(request: DescribeClientQuotasRequest) -> Filter:
    """Of at most three components. Raises KafkaError."""
    exact: dict[str, str | None] = {}
    types: set[str] = set()
    for component in request.components:
        kind = component.entity_type
        if not kind:
            raise _invalid("Invalid empty entity type.")
        if kind in exact or kind in types:
            raise _invalid(f"Entity type {kind} cannot appear more than once in the filter.")
        if kind not in ENTITY_TYPES:
            raise KafkaError(ErrorCode.UNSUPPORTED_VERSION, f"Unsupported entity type {kind}")
        _check_match(component)
        if component.match_type == SPECIFIED:
            types.add(kind)
        else:
            exact[kind] = component.match
    asked = {*exact, *types}
    if IP in asked and len(asked) > 1:
        raise _invalid("A filter for an ip has no user and no client-id in it")
    return Filter(exact, frozenset(types), request.strict)


def _check_match(component: Component) -> None:
    """Raise KafkaError for a name that is missing or in the way."""
    if component.match_type not in (EXACT, DEFAULT, SPECIFIED):
        raise _invalid(f"Unknown match type {component.match_type}")
    if component.match_type == EXACT and component.match is None:
        raise _invalid("An exact match needs a name")
    if component.match_type != EXACT and component.match is not None:
        raise _invalid("Only an exact match has a name")


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_REQUEST, message)


def _described(quota: ClientQuota) -> DescribeClientQuotasResponse.Entry:
    answer = DescribeClientQuotasResponse
    return answer.Entry(
        entity=[
            answer.Entity(entity_type=kind, entity_name=name) for kind, name in quota.entity.items()
        ],
        values=[answer.Value(key=key, value=value) for key, value in quota.values.items()],
    )


class Outcome(NamedTuple):
    """What became of the changes of one entity, or what is to be done for it."""

    row: Row
    alteration: Alteration = {}  # noqa: RUF012  # a mapping that nobody writes
    code: ErrorCode = ErrorCode.NONE
    message: str | None = None

    def failed(self, error: KafkaError) -> Outcome:
        """That it failed."""
        return Outcome(self.row, code=error.code, message=error.message)


@handles(ApiKey.ALTER_CLIENT_QUOTAS, versions="0-1")
async def alter_client_quotas(
    ctx: Context, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    """Behaviour: sets quotas of entities and takes them away; those that are not named stay. They
    rule at once, also on connections that are open (KIP-546).

    Errors: INVALID_REQUEST for an entity that cannot be, is too long, or stands there twice, for a
    key that is unknown, twice there or not one of that entity, and for a number that is not allowed;
    POLICY_VIOLATION for more entities than there may be.

    Differs from Kafka: nothing of an entity changes that stands there twice; Kafka obeys its first
    row and tells an error. Names of hosts are not looked up.
    """
    outcomes: dict[str, Outcome] = {}
    refusal: KafkaError | None = None
    try:
        ctx.require_cluster(AclOperation.ALTER_CONFIGS)
    except KafkaError as error:
        refusal = error
    async for row in ctx.time_slice.each(request.entries):
        key = _key(row, len(outcomes))
        if refusal is not None:
            outcomes[key] = Outcome(row).failed(refusal)
        elif key in outcomes:
            outcomes[key] = Outcome(row).failed(_invalid("Ignoring duplicate entity"))
        else:
            outcomes[key] = await _planned(ctx, row)
    if refusal is None:
        await _carry_out(ctx, outcomes, validate_only=request.validate_only)
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
    """What is the same for rows of the same entity; one of too many parts has no other like it."""
    if len(row.entity) > len(ENTITY_TYPES):
        return str(count)
    return key_of({each.entity_type: each.entity_name for each in row.entity})


async def _planned(ctx: Context, row: Row) -> Outcome:
    """What a row asks for, or why that cannot be."""
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
        return Outcome(row).failed(_invalid(str(error)))
    return Outcome(row, alteration)


def _entity(row: Row) -> Entity:
    """Whom a row is about. Raises BadQuota."""
    entity = {each.entity_type: each.entity_name for each in row.entity[: len(ENTITY_TYPES)]}
    if len(entity) < len(row.entity):
        raise BadQuota("Invalid client quota entity: it has two parts of one type")
    check_entity(entity)
    if any(len((name or "").encode()) > NAME_BYTES_MAX for name in entity.values()):
        raise BadQuota(f"A name has at most {NAME_BYTES_MAX} bytes")
    return entity


async def _carry_out(ctx: Context, outcomes: dict[str, Outcome], *, validate_only: bool) -> None:
    """Store what is left to be done, some entities at once, and write down what fails."""
    cluster = ctx.node.cluster
    cause = f"AlterClientQuotas by {ctx.client_id}"
    left: Iterable[str] = iter(
        [key for key, each in outcomes.items() if each.alteration and not each.code]
    )
    while keys := [*islice(left, AT_ONCE)]:
        changes = [(_entity(outcomes[key].row), outcomes[key].alteration) for key in keys]
        try:
            if validate_only:
                check_room(cluster, sum(key not in cluster.client_quotas for key in keys))
            else:
                await alter_quotas(cluster, changes, cause=cause)
                logger.info("%s: %s", cause, some_of([text_of(entity) for entity, _ in changes]))
                _tell(ctx, changes)
        except KafkaError as error:
            outcomes.update((key, outcomes[key].failed(error)) for key in keys)
        await ctx.time_slice.pause()


def _tell(ctx: Context, changes: Iterable[tuple[Entity, Alteration]]) -> None:
    """Write changes to the audit log."""
    for entity, alteration in changes:
        values = {key: value for key, value in alteration.items() if value is not None}
        gone = [key for key in alteration if key not in values]
        told = [f"{key}={value:.12g}" for key, value in values.items()]
        told += [f"no {key}" for key in gone if key in [*QuotaKey]]
        ctx.node.audit.changed(
            ctx.peer.client,
            f"quotas of {text_of(entity)}: {', '.join(told)}",
            entity=dict(entity),
            quotas=values,
        )
