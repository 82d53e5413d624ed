"""The settings of a node while it runs."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kbroker.config import BrokerConfig, ConfigError, Source

from .cluster import Cluster
from .model import EVERY_NODE, ConfigResource, ResourceType

logger = logging.getLogger(__name__)

SET_BY_CLIENTS = "set by clients"


class LiveConfig:
    """What a node was started with, under what clients have set since.

    `now` is all of it; `static` is the first part.
    """

    def __init__(self, cluster: Cluster, static: BrokerConfig) -> None:
        self.static = static
        self.resources: tuple[tuple[ConfigResource, Source], ...] = (
            (ConfigResource(ResourceType.BROKER, EVERY_NODE), Source.DYNAMIC_DEFAULT_BROKER),
            (ConfigResource(ResourceType.BROKER, str(static.node_id)), Source.DYNAMIC_BROKER),
        )
        """What has settings of this node that change while it runs, the weaker first."""
        self._cluster = cluster
        self.now = self._laid_over()

    def changed(self, resource: ConfigResource) -> bool:
        """Take what the cluster says now; returns whether a resource has to do with this node."""
        if resource not in (each for each, _ in self.resources):
            return False
        self.now = self._laid_over()
        return True

    def _laid_over(self) -> BrokerConfig:
        config = self.static
        for resource, source in self.resources:
            config = _with_settings_that_fit(config, self._cluster.own_configs(resource), source)
        return config


def _with_settings_that_fit(
    config: BrokerConfig, values: Mapping[str, str], source: Source
) -> BrokerConfig:
    """Lay what clients gave brokers over `config`.

    What was good once need not be so after a change of what the node is started with, or in
    another version: then the rest still holds, because dropping a retention with it would drop
    records.
    """
    try:
        return config.overlay(values, origin=SET_BY_CLIENTS, source=source)
    except ConfigError:
        pass
    result = config
    fitting: dict[str, str] = {}
    for name, value in values.items():
        try:
            result = config.overlay({**fitting, name: value}, origin=SET_BY_CLIENTS, source=source)
        except ConfigError as error:
            logger.error("a setting that clients gave brokers is left out: %s", error)
        else:
            fitting[name] = value
    return result
