"""`kbroker serve`: run a broker in the foreground."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, TypeVar

import click

from .declared_options import declared_options, split_override
from .units import DURATION

Command = TypeVar("Command", bound=Callable[..., Any])


def _option(*names: str, **settings: Any) -> Callable[[Command], Command]:
    """A click option that has an environment name too: --port-file is KBROKER_PORT_FILE."""
    flag = next(name for name in names if name.startswith("--"))
    environment = "KBROKER_" + flag.split("/")[0].lstrip("-").replace("-", "_").upper()
    return click.option(*names, envvar=environment, **settings)


@click.command()
@_option("--host", help="Address to listen on.  [default: localhost]")
@_option(
    "--port",
    type=click.IntRange(0, 65535),
    help="Port to listen on; 0 takes a free one.  [default: 9092]",
)
@_option(
    "--advertise",
    metavar="HOST:PORT",
    help="Tell clients this address. Without it each client is told the one it dialled.",
)
@_option(
    "--data-dir",
    type=click.Path(file_okay=False),
    help="Where records live.  [default: ./kbroker-data]",
)
@_option("--memory", is_flag=True, help="Keep everything in memory; all is gone at the end.")
@_option(
    "--config",
    "config_file",
    type=click.Path(exists=True, dir_okay=False),
    help="A server.properties or kbroker.toml file.",
)
@click.option(
    "-o",
    "overrides",
    multiple=True,
    metavar="KEY=VALUE",
    help="Set a Kafka or kbroker property; can be given several times.",
)
@declared_options
@_option(
    "--port-file",
    type=click.Path(dir_okay=False),
    help="Write HOST:PORT here once ready; with suffix .json the whole ready event.",
)
@_option("--ready-fd", type=int, help="Write the ready event to this descriptor, then close it.")
@_option("--json", "as_json", is_flag=True, help="Print events as one JSON object a line.")
@_option(
    "--log-level",
    "log_levels",
    multiple=True,
    metavar="[LOGGER=]LEVEL",
    help="Such as warning, or kbroker.protocol=debug.",
)
@_option("--log-format", type=click.Choice(["text", "json"]), default="text", show_default=True)
@_option(
    "--strict", is_flag=True, help="Unknown properties and unsafe set-ups are errors, not warnings."
)
@_option(
    "--grace",
    "grace_seconds",
    type=DURATION,
    default="5s",
    show_default=True,
    help="How long a graceful stop may take.",
)
@_option("--exit-with-parent", is_flag=True, help="Stop when the parent process is gone.")
@_option(
    "--idle-timeout",
    "idle_seconds",
    type=DURATION,
    help="Stop when no client was connected for this long, for example 10m.",
)
def serve(**options: Any) -> None:
    """Run a broker until Ctrl+C or SIGTERM."""
    from kbroker.config import ConfigError
    from kbroker.declared import StartFailed
    from kbroker.serving import ServeOptions, run_server

    if options["memory"] and options["data_dir"]:
        raise click.UsageError("--memory and --data-dir exclude each other")
    overrides = dict(split_override(text) for text in options.pop("overrides"))
    settings = ServeOptions(overrides=overrides, **options)
    try:
        run_server(settings)
    except (StartFailed, ConfigError) as error:
        click.echo(f"kbroker: {error}", err=True)
        sys.stdout.flush()
        sys.exit(3)
