"""Options for the sources of settings, for all commands that read them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from .options import add_options
from .setting_completion import complete_broker_settings
from .units import ParamType

Command = TypeVar("Command", bound=Callable[..., object])


def option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """Return a click option with an environment variable: KBROKER_PORT_FILE for --port-file."""
    flag = next(name for name in names if name.startswith("--"))
    environment = "KBROKER_" + flag.split("/")[0].lstrip("-").replace("-", "_").upper()
    return click.option(*names, envvar=environment, **settings)


NO_PORT = -1


class _HttpPort(ParamType[int]):
    """A port, or `off`."""

    name = "port"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if value == "off":
            return NO_PORT
        return int(click.IntRange(0, 65535).convert(value, param, ctx))


_OPTIONS: tuple[Callable[[Command], Command], ...] = (
    option("--host", help="Address to listen on.  [default: localhost]"),
    option(
        "--port",
        type=click.IntRange(0, 65535),
        help="Port to listen on; 0 means a free port.  [default: 9092]",
    ),
    option(
        "--advertise",
        metavar="HOST:PORT",
        help="Address that clients use to connect. Without it, each client gets the address to "
        "which it connected.",
    ),
    option(
        "--host-port",
        type=click.IntRange(1, 65535),
        help="In a container: also listen on this port, and advertise localhost and this port to "
        "clients of it. For clients outside the container, if the port is published with the "
        "same number.",
    ),
    option(
        "--http-host",
        help="Address of the HTTP server for the console and metrics.  [default: 127.0.0.1]",
    ),
    option(
        "--http-port",
        type=_HttpPort(),
        metavar="PORT|off",
        help="Port of the HTTP server for the console, metrics and probes; 0 means a free port. "
        "Requires kbroker[console].",
    ),
    option(
        "--console-write",
        is_flag=True,
        help="Permit changes in the console on a non-loopback --http-host.",
    ),
    option("--registry-host", help="Address of the schema registry.  [default: 127.0.0.1]"),
    option(
        "--registry-port",
        type=_HttpPort(),
        metavar="PORT|off",
        help="Port of the schema registry; 0 means a free port. Requires kbroker[registry].",
    ),
    option(
        "--data-dir",
        type=click.Path(file_okay=False),
        help="Data directory.  [default: ./kbroker-data]",
    ),
    option(
        "--config",
        "config_file",
        type=click.Path(exists=True, dir_okay=False),
        help="Configuration file: server.properties or kbroker.toml.",
    ),
    click.option(
        "-o",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        shell_complete=complete_broker_settings,
        help="Set a Kafka or kbroker setting, such as log.retention.ms=7d; can be given several "
        "times.",
    ),
    option(
        "--env-config",
        is_flag=True,
        help="Read KAFKA_* environment variables as Kafka's container images do.",
    ),
    option(
        "--strict",
        is_flag=True,
        help="Treat unknown settings and unsafe configurations as errors instead of warnings.",
    ),
)


def setting_options(command: Command) -> Command:
    """Add the options of `kbroker.process.flags.SettingFlags`; `overrides` is a tuple of strings."""
    return add_options(command, _OPTIONS)


def parse_broker_settings(texts: Iterable[str], parameter: str = "-o") -> dict[str, str]:
    """Parse KEY=VALUE strings of broker settings; the last value of a key applies.

    Args:
        texts: The strings; values may have units.
        parameter: Name of the parameter, for errors.

    Raises:
        BadParameter: A string is invalid.
    """
    from kbroker.config import ConfigError, Scope, plain_numbers, read_options

    try:
        return plain_numbers(Scope.BROKER, read_options(texts))
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint=parameter) from None
