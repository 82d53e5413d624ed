"""DescribeConfigs: every setting with its value, where that came from, and what it means."""

from __future__ import annotations

from kbroker.cluster.model import check_topic_name
from kbroker.config import ConfigEntry, describe_broker, describe_topic
from kbroker.context import Context
from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.messages.configs import DescribeConfigsRequest, DescribeConfigsResponse
from kbroker.registry import handles

TOPIC, BROKER = 2, 4


@handles(ApiKey.DESCRIBE_CONFIGS, versions="0-4")
def describe_configs(ctx: Context, request: DescribeConfigsRequest) -> DescribeConfigsResponse:
    """Behaviour: full entries of topics and of this broker; unknown keys are left out.

    Versions: 1 has sources and synonyms, 3 types and texts.
    """
    resources = {(row.resource_type, row.resource_name): row for row in request.resources}
    return DescribeConfigsResponse(
        results=[_describe(ctx, request, row) for row in resources.values()]
    )


def _describe(
    ctx: Context, request: DescribeConfigsRequest, resource: DescribeConfigsRequest.Resource
) -> DescribeConfigsResponse.Resource:
    answer = DescribeConfigsResponse.Resource(
        resource_type=resource.resource_type, resource_name=resource.resource_name
    )
    try:
        entries = _entries(ctx, resource)
    except KafkaError as error:
        answer.error_code, answer.error_message = error.code, error.message
        return answer
    wanted = resource.configuration_keys
    answer.configs = [
        _row(request, entry) for entry in entries if not wanted or entry.name in wanted
    ]
    return answer


def _entries(ctx: Context, resource: DescribeConfigsRequest.Resource) -> list[ConfigEntry]:
    name = resource.resource_name
    if resource.resource_type == TOPIC:
        check_topic_name(name)
        topic = ctx.node.cluster.topics.get(name)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
        return describe_topic(topic.configs, ctx.node.config)
    if resource.resource_type == BROKER:
        if name not in ("", str(ctx.node.id)):
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"this is broker {ctx.node.id}, not {name!r}"
            )
        entries = describe_broker(ctx.node.config)
        # "" asks for what was set for the whole cluster at run time.
        return entries if name else []
    raise KafkaError(
        ErrorCode.INVALID_REQUEST, f"there is nothing to describe of type {resource.resource_type}"
    )


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
