"""DescribeConfigs, IncrementalAlterConfigs, AlterConfigs, ListConfigResources."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Hashable, Iterable, Sequence
from typing import Protocol, TypeVar

from kbroker.cluster import ResourceType
from kbroker.config import Change, ConfigEntry, Operation
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.configs import (
    AlterConfigsRequest,
    AlterConfigsResponse,
    DescribeConfigsRequest,
    DescribeConfigsResponse,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
    ListConfigResourcesRequest,
    ListConfigResourcesResponse,
)
from kbroker.security.acls import AclOperation

from .config_resources import (
    SETTINGS_MAX,
    Resource,
    change_settings,
    find_resource,
    list_resources,
    replace_settings,
)
from .context import Context
from .registry import handles

# Resource types whose resources need not exist: clients can set configs for any name.
ARBITRARY_NAME_TYPES = (ResourceType.GROUP, ResourceType.CLIENT_METRICS)
# Maximum number of groups and client metrics subscriptions that one request describes.
ARBITRARY_NAMES_MAX = 10_000


@handles(ApiKey.DESCRIBE_CONFIGS, versions="0-4", read_only=True)
async def describe_configs(
    ctx: Context, request: DescribeConfigsRequest
) -> DescribeConfigsResponse:
    """Describe topics, this broker, its log levels, groups and client metrics subscriptions.

    Unknown keys are omitted. A resource type that does not exist fails the whole request.

    Versions: 1 has sources and synonyms, 3 types and documentation.

    Differs from Kafka: one request describes at most 10,000 groups and client metrics
    subscriptions. The others get POLICY_VIOLATION.
    """
    resources: dict[tuple[int, str], DescribeConfigsRequest.Resource] = {}
    async for row in ctx.time_slice.each(request.resources):
        resources[row.resource_type, row.resource_name] = row
    unknown = {kind for kind, _ in resources} - set(ResourceType)
    if unknown:
        return await _error_for_all(ctx, resources, f"unknown resource type {min(unknown)}")
    described = _ResponseRows(ctx, request)
    return DescribeConfigsResponse(
        results=[described.result(each) async for each in ctx.time_slice.each(resources.values())]
    )


class _Named(Protocol):
    """A request row that names a config resource."""

    resource_type: int
    resource_name: str


def require_settings(ctx: Context, operation: AclOperation, row: _Named) -> None:
    """Check that the client may perform an operation on the settings of a resource.

    Raises:
        KafkaError: The authorization error of the resource type.
    """
    if row.resource_type == ResourceType.TOPIC:
        ctx.require_topic(operation, row.resource_name)
    elif row.resource_type == ResourceType.GROUP:
        ctx.require_group(operation, row.resource_name)
    else:
        ctx.require_cluster(operation)


async def _error_for_all(
    ctx: Context, resources: Iterable[tuple[int, str]], message: str
) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResponse.Resource(
                error_code=ErrorCode.INVALID_REQUEST,
                error_message=message,
                resource_type=kind,
                resource_name=name,
            )
            async for kind, name in ctx.time_slice.each(resources)
        ]
    )


class _ResponseRows:
    """Rows of one DescribeConfigs response. Resources with the same settings share their rows."""

    __slots__ = ("_arbitrary_names", "_ctx", "_node", "_request", "_rows")

    def __init__(self, ctx: Context, request: DescribeConfigsRequest) -> None:
        self._ctx = ctx
        self._node = ctx.node
        self._request = request
        # Number of described resources with a type in `ARBITRARY_NAME_TYPES`.
        self._arbitrary_names = 0
        self._rows: dict[Hashable, list[DescribeConfigsResponse.Config]] = {}

    def result(self, asked: DescribeConfigsRequest.Resource) -> DescribeConfigsResponse.Resource:
        """Return the row of one resource."""
        answer = DescribeConfigsResponse.Resource(
            error_message="",  # never null in Kafka's responses
            resource_type=asked.resource_type,
            resource_name=asked.resource_name,
        )
        try:
            require_settings(self._ctx, AclOperation.DESCRIBE_CONFIGS, asked)
            self._check_count(asked)
            rows = self._rows_of(
                find_resource(self._node, asked.resource_type, asked.resource_name)
            )
        except KafkaError as error:
            answer.error_code, answer.error_message = error.code, error.message or ""
            return answer
        wanted = frozenset(asked.configuration_keys or ())
        answer.configs = [row for row in rows if row.name in wanted] if wanted else rows
        return answer

    def _check_count(self, asked: DescribeConfigsRequest.Resource) -> None:
        if asked.resource_type in ARBITRARY_NAME_TYPES:
            self._arbitrary_names += 1
        if self._arbitrary_names > ARBITRARY_NAMES_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"one request describes at most {ARBITRARY_NAMES_MAX} groups and client metrics "
                "subscriptions; send several requests",
            )

    def _rows_of(self, resource: Resource) -> list[DescribeConfigsResponse.Config]:
        key = type(resource), resource.entries_key()
        rows = self._rows.get(key)
        if rows is None:
            rows = self._rows[key] = [_row(self._request, each) for each in resource.entries()]
        return rows


def _row(request: DescribeConfigsRequest, entry: ConfigEntry) -> DescribeConfigsResponse.Config:
    synonyms = entry.synonyms if request.include_synonyms else []
    return DescribeConfigsResponse.Config(
        name=entry.name,
        value=entry.value,
        read_only=entry.read_only,
        config_source=entry.source,
        is_default=entry.is_default,
        is_sensitive=entry.sensitive,
        synonyms=[
            DescribeConfigsResponse.Synonym(name=each.name, value=each.value, source=each.source)
            for each in synonyms
        ],
        config_type=entry.type,
        documentation=(entry.doc or None) if request.include_documentation else None,
    )


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions="0-1")
async def incremental_alter_configs(
    ctx: Context, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Set, delete, append to and subtract from single settings, for each resource all or none.

    The changes are in effect when the response arrives.
    """

    async def alter(row: IncrementalAlterConfigsRequest.Resource) -> None:
        resource = find_resource(ctx.node, row.resource_type, row.resource_name)
        await change_settings(
            resource, _changes(row), validate_only=request.validate_only, cause=_cause(ctx)
        )

    changed = await _alter_each(ctx, request.resources, alter)
    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponse.Resource(
                error_code=code,
                error_message=message,
                resource_type=row.resource_type,
                resource_name=row.resource_name,
            )
            async for row, code, message in ctx.time_slice.each(changed)
        ]
    )


def _changes(row: IncrementalAlterConfigsRequest.Resource) -> list[Change]:
    return [_change(each) for each in row.configs]


def _change(row: IncrementalAlterConfigsRequest.Config) -> Change:
    try:
        operation = Operation(row.config_operation)
    except ValueError:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unknown operation type {row.config_operation}"
        ) from None
    return Change(row.name, operation, row.value or "")


@handles(ApiKey.ALTER_CONFIGS, versions="0-2")
async def alter_configs(ctx: Context, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Replace all settings of resources; settings that the request omits are unset."""

    async def alter(row: AlterConfigsRequest.Resource) -> None:
        resource = find_resource(ctx.node, row.resource_type, row.resource_name)
        values = {each.name: each.value or "" for each in row.configs}
        await replace_settings(
            resource, values, validate_only=request.validate_only, cause=_cause(ctx)
        )

    changed = await _alter_each(ctx, request.resources, alter)
    return AlterConfigsResponse(
        responses=[
            AlterConfigsResponse.Resource(
                error_code=code,
                error_message=message,
                resource_type=row.resource_type,
                resource_name=row.resource_name,
            )
            async for row, code, message in ctx.time_slice.each(changed)
        ]
    )


def _cause(ctx: Context) -> str:
    return f"settings changed by {ctx.client_id}"


Altered = TypeVar("Altered", AlterConfigsRequest.Resource, IncrementalAlterConfigsRequest.Resource)


async def _alter_each(
    ctx: Context, rows: Sequence[Altered], alter: Callable[[Altered], Awaitable[None]]
) -> list[tuple[Altered, int, str | None]]:
    """Alter each resource independently. Return rows with their error code and error message."""
    named: set[tuple[int, str]] = set()
    twice: set[tuple[int, str]] = set()
    async for row in ctx.time_slice.each(rows):
        resource = row.resource_type, row.resource_name
        (twice if resource in named else named).add(resource)
    outcomes: list[tuple[Altered, int, str | None]] = []
    async for row in ctx.time_slice.each(rows):
        try:
            if (row.resource_type, row.resource_name) in twice:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
                )
            require_settings(ctx, AclOperation.ALTER_CONFIGS, row)
            _check_row(row)
            await alter(row)
        except KafkaError as error:
            outcomes.append((row, error.code, error.message))
        else:
            outcomes.append((row, ErrorCode.NONE, None))
    return outcomes


def _check_row(
    row: AlterConfigsRequest.Resource | IncrementalAlterConfigsRequest.Resource,
) -> None:
    if row.resource_type == ResourceType.TOPIC and not row.resource_name:
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Default topic resources are not allowed.")
    if len(row.configs) > SETTINGS_MAX:
        raise KafkaError(
            ErrorCode.INVALID_CONFIG, f"A resource has at most {SETTINGS_MAX} settings"
        )
    names = [each.name for each in row.configs]
    if len(set(names)) < len(names):
        raise KafkaError(ErrorCode.INVALID_REQUEST, "Error due to duplicate config keys")
    without = [each.name for each in row.configs if each.value is None and not _deletes(each)]
    if without:
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Null value not supported for : {','.join(without)}"
        )


def _deletes(row: AlterConfigsRequest.Config | IncrementalAlterConfigsRequest.Config) -> bool:
    operation = getattr(row, "config_operation", Operation.SET)
    return operation == Operation.DELETE


@handles(ApiKey.LIST_CONFIG_RESOURCES, versions="0-1", read_only=True)
async def list_config_resources(
    ctx: Context, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """List all topics and brokers, and the groups and subscriptions that have settings.

    Versions: 0 lists client metrics subscriptions only, 1 the requested types.
    """
    types = request.resource_types if ctx.version else [ResourceType.CLIENT_METRICS]
    try:
        ctx.require_cluster(AclOperation.DESCRIBE_CONFIGS)
        found = await list_resources(ctx.node, types, ctx.time_slice)
    except KafkaError as error:
        return ListConfigResourcesResponse(error_code=error.code)
    return ListConfigResourcesResponse(
        config_resources=[
            ListConfigResourcesResponse.Resource(resource_type=each.type, resource_name=each.name)
            async for each in ctx.time_slice.each(found)
        ]
    )
