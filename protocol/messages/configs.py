"""Settings of topics, brokers and other resources."""

from ..schema import Int8, Int16, Int32, message, struct, wire


@message(key=32, versions="0-4", flexible="4+")
class DescribeConfigsRequest:
    """Request for the settings of topics, brokers, groups and other resources."""

    @struct
    class Resource:
        resource_type: Int8 = 0
        resource_name: str = ""
        configuration_keys: list[str] | None = None
        """Null means all settings."""

    resources: list[Resource] = wire()
    include_synonyms: bool = wire(since=1)
    include_documentation: bool = wire(since=3)


@message(key=32, versions="0-4", flexible="4+")
class DescribeConfigsResponse:
    """Settings by resource, from version 1 on with their sources (KIP-226)."""

    @struct
    class Synonym:
        """A source of a setting; the first one with a value takes precedence."""

        name: str = ""
        value: str | None = None
        source: Int8 = 0

    @struct
    class Config:
        name: str = ""
        value: str | None = None
        read_only: bool = False
        config_source: Int8 = wire(since=1, default=-1)
        """1 topic, 2 broker, 3 cluster-wide broker default, 4 static, 5 default (KIP-226)."""
        is_default: bool = wire(until=0)
        """Version 0 only; later versions have `config_source`."""
        is_sensitive: bool = False
        synonyms: list["DescribeConfigsResponse.Synonym"] = wire(since=1)
        config_type: Int8 = wire(since=3)
        documentation: str | None = wire(since=3)

    @struct
    class Resource:
        error_code: Int16 = 0
        error_message: str | None = None
        resource_type: Int8 = 0
        resource_name: str = ""
        configs: list["DescribeConfigsResponse.Config"] = wire()

    throttle_time_ms: Int32 = 0
    results: list[Resource] = wire()


@message(key=33, versions="0-2", flexible="2+")
class AlterConfigsRequest:
    """Request to replace all settings of resources (see `IncrementalAlterConfigsRequest`)."""

    @struct
    class Config:
        name: str = ""
        value: str | None = wire(secret=True)

    @struct
    class Resource:
        resource_type: Int8 = 0
        resource_name: str = ""
        configs: list["AlterConfigsRequest.Config"] = wire()

    resources: list[Resource] = wire()
    validate_only: bool = False


@message(key=33, versions="0-2", flexible="2+")
class AlterConfigsResponse:
    """Outcome per resource."""

    @struct
    class Resource:
        error_code: Int16 = 0
        error_message: str | None = None
        resource_type: Int8 = 0
        resource_name: str = ""

    throttle_time_ms: Int32 = 0
    responses: list[Resource] = wire()


@message(key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsRequest:
    """Request to set, delete, append to or subtract from single settings (KIP-339)."""

    @struct
    class Config:
        name: str = ""
        config_operation: Int8 = 0
        """0 set, 1 delete, 2 append, 3 subtract."""
        value: str | None = wire(secret=True)

    @struct
    class Resource:
        resource_type: Int8 = 0
        resource_name: str = ""
        configs: list["IncrementalAlterConfigsRequest.Config"] = wire()

    resources: list[Resource] = wire()
    validate_only: bool = False


@message(key=44, versions="0-1", flexible="1+")
class IncrementalAlterConfigsResponse:
    """Outcome per resource."""

    @struct
    class Resource:
        error_code: Int16 = 0
        error_message: str | None = None
        resource_type: Int8 = 0
        resource_name: str = ""

    throttle_time_ms: Int32 = 0
    responses: list[Resource] = wire()


@message(key=74, versions="0-1", flexible="0+")
class ListConfigResourcesRequest:
    """Request for the resources with settings by type (KIP-1142; version 0 is from KIP-714)."""

    resource_types: list[Int8] = wire(since=1)


@message(key=74, versions="0-1", flexible="0+")
class ListConfigResourcesResponse:
    """Names of resources that have settings."""

    @struct
    class Resource:
        resource_name: str = ""
        resource_type: Int8 = wire(since=1, default=16)

    throttle_time_ms: Int32 = 0
    error_code: Int16 = 0
    config_resources: list[Resource] = wire()
