"""The flags that say where settings come from, for every command that reads them."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import click

from .units import ParamType

Command = TypeVar("Command", bound=Callable[..., object])


def option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """A click option that has an environment name too: --port-file is KBROKER_PORT_FILE."""
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
        help="Port to listen on; 0 takes a free one.  [default: 9092]",
    ),
    option(
        "--advertise",
        metavar="HOST:PORT",
        help="Tell clients this address. Without it each client is told the one it dialled.",
    ),
    option(
        "--host-port",
        type=click.IntRange(1, 65535),
        help="Of a container: listen on this port too, and tell who comes by it localhost and this"
        " port. For clients outside, where it is published under the same number.",
    ),
    option("--http-host", help="Address for the console and metrics.  [default: 127.0.0.1]"),
    option(
        "--http-port",
        type=_HttpPort(),
        metavar="PORT|off",
        help="Serve the console, metrics and probes by HTTP here; 0 takes a free port. Needs "
        "kbroker[console].",
    ),
    option(
        "--console-write",
        is_flag=True,
        help="Let the console write beyond this machine too, with --http-host.",
    ),
    option("--registry-host", help="Address for the schema registry.  [default: 127.0.0.1]"),
    option(
        "--registry-port",
        type=_HttpPort(),
        metavar="PORT|off",
        help="Serve a schema registry here; 0 takes a free port. Needs kbroker[registry].",
    ),
    option(
        "--data-dir",
        type=click.Path(file_okay=False),
        help="Where records live.  [default: ./kbroker-data]",
    ),
    option(
        "--config",
        "config_file",
        type=click.Path(exists=True, dir_okay=False),
        help="A server.properties or kbroker.toml file.",
    ),
    click.option(
        "-o",
        "overrides",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a Kafka or kbroker property; can be given several times.",
    ),
    option(
        "--env-config",
        is_flag=True,
        help="Read KAFKA_* environment variables as Kafka's container images do.",
    ),
    option(
        "--strict",
        is_flag=True,
        help="Unknown properties and unsafe set-ups are errors, not warnings.",
    ),
)


def setting_options(command: Command) -> Command:
    """Give a command the flags of `kbroker.process.flags.SettingFlags`; `overrides` comes as texts."""
    for each in reversed(_OPTIONS):
        command = each(command)
    return command


def split_overrides(texts: Iterable[str]) -> dict[str, str]:
    """Read the KEY=VALUE texts of `-o`; the last one of a key holds. Raises BadParameter."""
    from kbroker.config import ConfigError, read_options

    try:
        return read_options(texts)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="-o") from None
