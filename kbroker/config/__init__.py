"""Every setting of kbroker in one table, and the settings of a node or topic read through it.

The table feeds validation, the command line, DescribeConfigs and ``docs/configuration.md``
(``python -m kbroker.config`` writes it).
"""

from .alter import Change, Operation, altered
from .describe import ConfigEntry, Synonym, describe_broker, describe_every_broker, describe_topic
from .property import ConfigError, Effect, Property, Scope, Source, Type, Value
from .sources import Layer, parse_properties, parse_toml, read_environment, read_file, read_options
from .tables import BROKER_PROPERTIES, PROPERTIES, TOPIC_PROPERTIES
from .values import (
    BrokerConfig,
    Notice,
    ReadOnlyError,
    TopicConfig,
    validate_topic_config,
    validate_topic_configs,
)

__all__ = [
    "BROKER_PROPERTIES",
    "PROPERTIES",
    "TOPIC_PROPERTIES",
    "BrokerConfig",
    "Change",
    "ConfigEntry",
    "ConfigError",
    "Effect",
    "Layer",
    "Notice",
    "Operation",
    "Property",
    "ReadOnlyError",
    "Scope",
    "Source",
    "Synonym",
    "TopicConfig",
    "Type",
    "Value",
    "altered",
    "describe_broker",
    "describe_every_broker",
    "describe_topic",
    "parse_properties",
    "parse_toml",
    "read_environment",
    "read_file",
    "read_options",
    "validate_topic_config",
    "validate_topic_configs",
]
