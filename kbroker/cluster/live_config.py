"""The effective settings of a running node."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kbroker.config import BrokerConfig, ConfigError, Source

from .cluster import Cluster
from .model import EVERY_NODE, ConfigResource, ResourceType

logger = logging.getLogger(__name__)

SET_BY_CLIENTS = "set by clients"


class LiveConfig:
    """The static settings of a node, overlaid with dynamic broker settings.

    Attributes:
        now: The effective settings.
        static: The settings at startup.
        resources: Config resources that apply to this node, in ascending precedence.
    """

    def __init__(self, cluster: Cluster, static: BrokerConfig) -> None:
        self.static = static
        self.resources: tuple[tuple[ConfigResource, Source], ...] = (
            (ConfigResource(ResourceType.BROKER, EVERY_NODE), Source.DYNAMIC_DEFAULT_BROKER),
            (ConfigResource(ResourceType.BROKER, str(static.node_id)), Source.DYNAMIC_BROKER),
        )
        self._cluster = cluster
        self.now = self._with_dynamic_settings()

    def apply_change(self, resource: ConfigResource) -> bool:
        """Apply changed settings; return True if the resource applies to this node."""
        if resource not in (each for each, _ in self.resources):
            return False
        self.now = self._with_dynamic_settings()
        return True

    def _with_dynamic_settings(self) -> BrokerConfig:
        config = self.static
        for resource, source in self.resources:
            config = _with_valid_settings(config, self._cluster.own_configs(resource), source)
        return config


def _with_valid_settings(
    config: BrokerConfig, values: Mapping[str, str], source: Source
) -> BrokerConfig:
    """Overlay `config` with dynamic settings, without invalid ones.

    A setting can become invalid by a change of the static settings or in another version. The
    other settings must still apply: ignoring a retention limit, for example, would delete records.
    """
    try:
        return config.overlay(values, origin=SET_BY_CLIENTS, source=source)
    except ConfigError:
        pass
    result = config
    valid: dict[str, str] = {}
    for name, value in values.items():
        try:
            result = config.overlay({**valid, name: value}, origin=SET_BY_CLIENTS, source=source)
        except ConfigError as error:
            logger.error("ignoring an invalid dynamic broker setting: %s", error)
        else:
            valid[name] = value
    return result
