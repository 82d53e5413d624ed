"""Optional HTTP services of a server: console and metrics, schema registry, and OTLP export."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import trio

from kbroker.broker import Service
from kbroker.config import BrokerConfig
from kbroker.net.server import Listener
from kbroker.runtime.closing import close_concurrently

from .errors import StartFailed

if TYPE_CHECKING:
    from kbroker.broker.local_node import LocalNode
    from kbroker.client.endpoint import Endpoint
    from kbroker.schemas.service import RegistryService
    from kbroker.web.listening import InheritedHttp
    from kbroker.web.metrics.otlp import OtlpService
    from kbroker.web.service import HttpService


@dataclass(frozen=True, slots=True)
class HttpServices:
    """HTTP services of all nodes of a process; implements `kbroker.broker.Service`."""

    http: HttpService | None = None
    registry: RegistryService | None = None
    otlp: OtlpService | None = None

    def http_at(self, node_id: int) -> Endpoint | None:
        """Return the address of a node's metrics and probes, or None."""
        return None if self.http is None else self.http.endpoint_of(node_id)

    def registry_at(self, node_id: int) -> Endpoint | None:
        """Return the address of a node's schema registry, or None."""
        return None if self.registry is None else self.registry.endpoint_of(node_id)

    @property
    def _services(self) -> list[Service]:
        return [each for each in (self.http, self.registry, self.otlp) if each is not None]

    async def bind(self, nodes: Sequence[LocalNode]) -> None:
        """Bind the addresses of all services, or none.

        Raises:
            CannotListen: An address cannot be bound.
        """
        try:
            for each in self._services:
                await each.bind(nodes)
        except BaseException:
            with trio.CancelScope(shield=True):
                await self.close()
            raise

    async def run(self) -> None:
        """Serve until `close`."""
        async with trio.open_nursery() as nursery:
            for each in self._services:
                nursery.start_soon(each.run)

    async def close(self) -> None:
        """Close all services concurrently, even if one of them fails."""
        await close_concurrently(each.close for each in self._services)


def http_service(
    config: BrokerConfig, listeners: Sequence[Listener], inherited: InheritedHttp | None = None
) -> HttpServices | None:
    """Return the configured HTTP services, or None if none is configured.

    Args:
        config: Settings.
        listeners: Listeners of the first node.
        inherited: Sockets of a node process of a multi-process server; None to bind the addresses.

    Raises:
        StartFailed: A service cannot be used, or its port is that of a listener.
    """
    check_ports(config, listeners)
    registry = _registry(config, listeners, inherited) if config.registry_port >= 0 else None
    http = _http(config, registry, inherited) if config.http_port >= 0 else None
    otlp = _otlp(config) if config.otlp_endpoint else None
    return HttpServices(http, registry, otlp) if http or registry or otlp else None


def check_ports(config: BrokerConfig, listeners: Sequence[Listener]) -> None:
    """Check that HTTP services and listeners have different ports.

    Raises:
        StartFailed: Two HTTP services, or one and a listener, have the same port.
    """
    http = Listener("http.port", config.http_host, config.http_port)
    registry = Listener("registry.port", config.registry_host, config.registry_port)
    for one, other in combinations((http, registry, *listeners), 2):
        if one.port > 0 and one.overlaps(other):
            raise StartFailed(
                f"{one.name} and {other.address} have the same port; give one of them another one"
            )


def _http(
    config: BrokerConfig, registry: RegistryService | None, inherited: InheritedHttp | None
) -> HttpService:
    try:
        from kbroker.web.service import HttpService  # optional dependencies
    except ModuleNotFoundError as error:
        missing = f"--http-port needs {error.name}: pip install 'kbroker[console]'"
        raise StartFailed(missing) from None
    return HttpService(config, None if registry is None else registry.schemas_of, inherited)


def _otlp(config: BrokerConfig) -> OtlpService:
    try:
        from kbroker.web.metrics.otlp import OtlpService  # optional dependencies
    except ModuleNotFoundError as error:
        missing = f"otlp.endpoint needs {error.name}: pip install 'kbroker[otlp]'"
        raise StartFailed(missing) from None
    return OtlpService(config)


def _registry(
    config: BrokerConfig, listeners: Sequence[Listener], inherited: InheritedHttp | None
) -> RegistryService:
    try:
        # The registry needs optional dependencies.
        from kbroker.schemas.service import RegistryService, authentication_problem
    except ModuleNotFoundError as error:
        missing = f"--registry-port needs {error.name}: pip install 'kbroker[registry]'"
        raise StartFailed(missing) from None
    reason = authentication_problem(config, listeners)
    if reason:
        raise StartFailed(reason)
    return RegistryService(config, inherited)
