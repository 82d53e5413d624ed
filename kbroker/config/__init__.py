"""Table of all settings, and the values that nodes, topics and groups have for them.

Validation, the command line, DescribeConfigs and ``docs/reference/configuration.md`` (written by
``python -m kbroker.config``) all use the table.
"""

from .alter import Change, Operation, apply_changes
from .describe import (
    describe_broker,
    describe_client_metrics,
    describe_every_broker,
    describe_group,
    describe_log_level,
    describe_topic,
)
from .entry import ConfigEntry, Synonym
from .group_values import (
    ClientMetricsConfig,
    GroupConfig,
    validate_client_metrics,
    validate_group_configs,
)
from .kafka_environment import KafkaEnvironment, read_kafka_environment
from .kafka_only import LISTENER_PREFIX
from .property import ConfigError, Property, Scope, SettingEffect, Source, Type, Value
from .sources import (
    ConfigLayer,
    parse_properties,
    parse_toml,
    property_text,
    read_environment,
    read_file,
    read_options,
)
from .tables import (
    BROKER_PROPERTIES,
    CLIENT_METRICS_PROPERTIES,
    GROUP_PROPERTIES,
    PROPERTIES,
    TOPIC_PROPERTIES,
    effect_of,
    unknown_name_error,
)
from .units import numbers_with_units, plain_number, plain_numbers, with_unit
from .values import (
    BrokerConfig,
    ConfigNotice,
    TopicConfig,
    validate_topic_config,
    validate_topic_configs,
)

__all__ = [
    "BROKER_PROPERTIES",
    "CLIENT_METRICS_PROPERTIES",
    "GROUP_PROPERTIES",
    "LISTENER_PREFIX",
    "PROPERTIES",
    "TOPIC_PROPERTIES",
    "BrokerConfig",
    "Change",
    "ClientMetricsConfig",
    "ConfigEntry",
    "ConfigError",
    "ConfigLayer",
    "ConfigNotice",
    "GroupConfig",
    "KafkaEnvironment",
    "Operation",
    "Property",
    "Scope",
    "SettingEffect",
    "Source",
    "Synonym",
    "TopicConfig",
    "Type",
    "Value",
    "apply_changes",
    "describe_broker",
    "describe_client_metrics",
    "describe_every_broker",
    "describe_group",
    "describe_log_level",
    "describe_topic",
    "effect_of",
    "numbers_with_units",
    "parse_properties",
    "parse_toml",
    "plain_number",
    "plain_numbers",
    "property_text",
    "read_environment",
    "read_file",
    "read_kafka_environment",
    "read_options",
    "unknown_name_error",
    "validate_client_metrics",
    "validate_group_configs",
    "validate_topic_config",
    "validate_topic_configs",
    "with_unit",
]
