"""The settings of a server from its flags, the environment and a file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from kbroker.config import BrokerConfig, ConfigError, KafkaEnvironment, read_kafka_environment

from .listeners import parse_endpoint, protocol_of, split_address

HOST_LISTENER = "HOST"
"""The name of the listener of `--host-port`."""


@dataclass(slots=True)
class SettingFlags:
    """What a command line says about settings; see the help of `kbroker serve` for each."""

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
    """What `KAFKA_*` says; nothing unless it is asked for. Raises ConfigError."""
    return read_kafka_environment(environ if flags.env_config else {})


def load_settings(flags: SettingFlags, environ: Mapping[str, str]) -> BrokerConfig:
    """Merge all places, strongest first: flags, `KBROKER_*`, `KAFKA_*`, the file.

    Raises ConfigError.
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
    """The flags that stand for a setting: their origin, the setting, its value."""
    if flags.data_dir is not None:
        if {"log.dir", "log.dirs"} & flags.overrides.keys():
            raise ConfigError("--data-dir and -o log.dirs both say where data is; leave one out")
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
        told = f"{name}://{parse_endpoint(flags.advertise)}"
        yield "--advertise", "advertised.listeners", ",".join([told, *others])


def _listen_for_host(config: BrokerConfig, port: int) -> BrokerConfig:
    """With one more listener, for clients of the machine that a container is on.

    It is like the first one, but for its port and for what its clients are told.
    """
    first, address = split_address(config.listeners[0], "listeners")
    if HOST_LISTENER in {split_address(each, "listeners")[0] for each in config.listeners}:
        raise ConfigError(
            f"listeners has {HOST_LISTENER} already; leave out --host-port, or name it otherwise"
        )
    listener = f"{HOST_LISTENER}://{address._replace(port=port)}"
    told = f"{HOST_LISTENER}://localhost:{port}"
    protocols = config.listener_security_protocol_map
    values = {
        "listeners": ",".join([*config.all_listeners, listener]),
        "advertised.listeners": ",".join([*config.all_advertised_listeners, told]),
        "listener.security.protocol.map": (
            f"{protocols},{HOST_LISTENER}:{protocol_of(config, first)}"
        ),
    }
    return config.overlay(values, origin="--host-port")
