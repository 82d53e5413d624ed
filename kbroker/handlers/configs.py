"""DescribeConfigs, IncrementalAlterConfigs, AlterConfigs, ListConfigResources."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

import trio

from kbroker.cluster import ResourceType
from kbroker.config import Change, ConfigEntry, Operation
from kbroker.config_resources import (
    change_settings,
    find_resource,
    list_resources,
    replace_settings,
)
from kbroker.context import Context
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
from kbroker.registry import handles


@handles(ApiKey.DESCRIBE_CONFIGS, versions="0-4")
def describe_configs(ctx: Context, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Behaviour: full entries of topics, this broker, its log levels, groups and metrics
    subscriptions; unknown keys are left out.

    Versions: 1 has sources and synonyms, 3 types and texts.

    A resource type that does not exist fails the whole request.
    """
    resources = {(row.resource_type, row.resource_name): row for row in request.resources}
    unknown = {kind for kind, _ in resources} - set(ResourceType)
    if unknown:
        return _refuse_all(resources, f"there is no resource type {min(unknown)}")
    return DescribeConfigsResponse(
        results=[_describe(ctx, request, row) for row in resources.values()]
    )


def _refuse_all(resources: Iterable[tuple[int, str]], message: str) -> DescribeConfigsResponse:
    return DescribeConfigsResponse(
        results=[
            DescribeConfigsResponse.Resource(
                error_code=ErrorCode.INVALID_REQUEST,
                error_message=message,
                resource_type=kind,
                resource_name=name,
            )
            for kind, name in resources
        ]
    )


def _describe(
    ctx: Context, request: DescribeConfigsRequest, resource: DescribeConfigsRequest.Resource
) -> DescribeConfigsResponse.Resource:
    answer = DescribeConfigsResponse.Resource(
        error_message="",  # never null in Kafka's answers
        resource_type=resource.resource_type,
        resource_name=resource.resource_name,
    )
    try:
        found = find_resource(ctx.node, resource.resource_type, resource.resource_name)
        entries = found.entries()
    except KafkaError as error:
        answer.error_code, answer.error_message = error.code, error.message or ""
        return answer
    wanted = resource.configuration_keys
    answer.configs = [
        _row(request, entry) for entry in entries if not wanted or entry.name in wanted
    ]
    return answer


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
        documentation=entry.doc if request.include_documentation else None,
    )


@handles(ApiKey.INCREMENTAL_ALTER_CONFIGS, versions="0-1")
async def incremental_alter_configs(
    ctx: Context, request: IncrementalAlterConfigsRequest
) -> IncrementalAlterConfigsResponse:
    """Behaviour: sets, deletes, appends to and subtracts from single settings; those of one
    resource all or none. They act when the answer arrives.
    """

    async def alter(row: IncrementalAlterConfigsRequest.Resource) -> None:
        resource = find_resource(ctx.node, row.resource_type, row.resource_name)
        await change_settings(
            resource, _changes(row), validate_only=request.validate_only, cause=_cause(ctx)
        )

    return IncrementalAlterConfigsResponse(
        responses=[
            IncrementalAlterConfigsResponse.Resource(
                error_code=code,
                error_message=message,
                resource_type=row.resource_type,
                resource_name=row.resource_name,
            )
            for row, code, message in await _alter_each(request.resources, alter)
        ]
    )


def _changes(row: IncrementalAlterConfigsRequest.Resource) -> list[Change]:
    return [_change(each) for each in row.configs]


def _change(row: IncrementalAlterConfigsRequest.Config) -> Change:
    if row.config_operation not in tuple(Operation):
        raise KafkaError(
            ErrorCode.INVALID_REQUEST, f"Unknown operation type {row.config_operation}"
        )
    return Change(row.name, Operation(row.config_operation), row.value or "")


@handles(ApiKey.ALTER_CONFIGS, versions="0-2")
async def alter_configs(ctx: Context, request: AlterConfigsRequest) -> AlterConfigsResponse:
    """Behaviour: a resource has exactly these settings afterwards; what is left out is unset."""

    async def alter(row: AlterConfigsRequest.Resource) -> None:
        resource = find_resource(ctx.node, row.resource_type, row.resource_name)
        values = {each.name: each.value or "" for each in row.configs}
        await replace_settings(
            resource, values, validate_only=request.validate_only, cause=_cause(ctx)
        )

    return AlterConfigsResponse(
        responses=[
            AlterConfigsResponse.Resource(
                error_code=code,
                error_message=message,
                resource_type=row.resource_type,
                resource_name=row.resource_name,
            )
            for row, code, message in await _alter_each(request.resources, alter)
        ]
    )


def _cause(ctx: Context) -> str:
    return f"settings changed by {ctx.client_id}"


Altered = TypeVar("Altered", AlterConfigsRequest.Resource, IncrementalAlterConfigsRequest.Resource)


async def _alter_each(
    rows: Sequence[Altered], alter: Callable[[Altered], Awaitable[None]]
) -> list[tuple[Altered, int, str | None]]:
    """Alter each resource by itself; returns its row, error code and message."""
    times = Counter((row.resource_type, row.resource_name) for row in rows)
    outcomes: list[tuple[Altered, int, str | None]] = []
    for row in rows:
        await trio.lowlevel.checkpoint()  # each is a sync; others get their turn
        try:
            if times[row.resource_type, row.resource_name] > 1:
                raise KafkaError(
                    ErrorCode.INVALID_REQUEST, "Each resource must appear at most once."
                )
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


@handles(ApiKey.LIST_CONFIG_RESOURCES, versions="0-1")
def list_config_resources(
    ctx: Context, request: ListConfigResourcesRequest
) -> ListConfigResourcesResponse:
    """Behaviour: all topics and brokers, and the groups and metrics subscriptions with settings.

    Versions: 0 tells metrics subscriptions only, 1 the types that are asked for.
    """
    types = request.resource_types if ctx.version else [ResourceType.CLIENT_METRICS]
    try:
        found = list_resources(ctx.node, types)
    except KafkaError as error:
        return ListConfigResourcesResponse(error_code=error.code)
    return ListConfigResourcesResponse(
        config_resources=[
            ListConfigResourcesResponse.Resource(resource_type=each.type, resource_name=each.name)
            for each in found
        ]
    )
