"""Server settings from command-line flags, environment variables and a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kbroker.config import BrokerConfig, ConfigError, KafkaEnvironment, read_kafka_environment

from .listeners import parse_endpoint, protocol_of, split_address

# Listener name of `--host-port`.
HOST_LISTENER = "HOST"


@dataclass(slots=True)
class SettingFlags:
    """Command-line flags for settings; see the help of `kbroker serve`."""

    host: str | None = None
    port: int | None = None
    advertise: str | None = None
    host_port: int | None = None
    http_host: str | None = None
    http_port: int | None = None
    console_write: bool = False
    registry_host: str | None = None
    registry_port: int | None = None
    data_dir: str | None = None
    node_id: int | None = None
    config_file: str | None = None
    overrides: dict[str, str] = field(default_factory=dict)
    env_config: bool = False
    strict: bool = False


def kafka_environment(flags: SettingFlags, environ: Mapping[str, str]) -> KafkaEnvironment:
    """Read the `KAFKA_*` variables if `--env-config` is given.

    Raises:
        ConfigError: A variable is invalid.
    """
    return read_kafka_environment(environ if flags.env_config else {})


def load_settings(flags: SettingFlags, environ: Mapping[str, str]) -> BrokerConfig:
    """Merge all sources in order of precedence: flags, `KBROKER_*`, `KAFKA_*`, the file.

    Raises:
        ConfigError: A setting is invalid.
    """
    config = BrokerConfig.load(
        options=flags.overrides,
        environ=environ,
        kafka_values=kafka_environment(flags, environ).values,
        file=Path(flags.config_file) if flags.config_file else None,
        strict=flags.strict,
    )
    for origin, name, value in _settings_of_flags(flags, config):
        config = config.overlay({name: value}, origin=origin)
    return config if flags.host_port is None else _listen_for_host(config, flags.host_port)


def _settings_of_flags(flags: SettingFlags, config: BrokerConfig) -> Iterator[tuple[str, str, str]]:
    """Yield flag, setting name and value for each flag that sets a setting."""
    if flags.data_dir is not None:
        if {"log.dir", "log.dirs"} & flags.overrides.keys():
            raise ConfigError("--data-dir and -o log.dirs both set the log directories; omit one")
        yield "--data-dir", "log.dirs", flags.data_dir
    if flags.node_id is not None:
        yield "--node-id", "node.id", str(flags.node_id)
    if flags.http_host is not None:
        yield "--http-host", "http.host", flags.http_host
    if flags.http_port is not None:
        yield "--http-port", "http.port", str(flags.http_port)
    if flags.console_write:
        yield "--console-write", "http.console.write", "true"
    if flags.registry_host is not None:
        yield "--registry-host", "registry.host", flags.registry_host
    if flags.registry_port is not None:
        yield "--registry-port", "registry.port", str(flags.registry_port)
    first = config.listeners[0]
    name, address = split_address(first, "listeners")
    if flags.host is not None or flags.port is not None:
        host = address.host if flags.host is None else flags.host
        port = address.port if flags.port is None else flags.port
        changed = f"{name}://{address._replace(host=host, port=port)}"
        listeners = [changed if each == first else each for each in config.all_listeners]
        yield "--host" if flags.port is None else "--port", "listeners", ",".join(listeners)
    if flags.advertise is not None:
        others = [
            each
            for each in config.all_advertised_listeners
            if split_address(each, "advertised.listeners")[0] != name
        ]
        own = f"{name}://{parse_endpoint(flags.advertise)}"
        yield "--advertise", "advertised.listeners", ",".join([own, *others])


def _listen_for_host(config: BrokerConfig, port: int) -> BrokerConfig:
    """Add the listener of `--host-port`, for clients on the host of a container.

    The new listener is a copy of the first one with another port, advertised as localhost.
    """
    first, address = split_address(config.listeners[0], "listeners")
    if HOST_LISTENER in {split_address(each, "listeners")[0] for each in config.listeners}:
        raise ConfigError(
            f"listeners already contains {HOST_LISTENER}; omit --host-port, or rename that listener"
        )
    listener = f"{HOST_LISTENER}://{address._replace(port=port)}"
    advertised = f"{HOST_LISTENER}://localhost:{port}"
    protocols = config.listener_security_protocol_map
    values = {
        "listeners": ",".join([*config.all_listeners, listener]),
        "advertised.listeners": ",".join([*config.all_advertised_listeners, advertised]),
        "listener.security.protocol.map": (
            f"{protocols},{HOST_LISTENER}:{protocol_of(config, first)}"
        ),
    }
    return config.overlay(values, origin="--host-port")
