"""The `kbroker profile` command: names clusters, so that commands need no addresses."""

from __future__ import annotations

from pathlib import Path

import click

from .output import say
from .profiles import read_profiles, write_profiles
from .target import BROKERS, KAFKA_BROKERS, SECRETS, SETTINGS, parse_settings

HIDDEN = "[hidden]"


@click.group()
def profile() -> None:
    """Name clusters, and select the one that commands connect to."""


@profile.command("list")
def list_() -> None:
    """Show all profiles without their secrets; an asterisk marks the selected one."""
    current, profiles = read_profiles()
    if not profiles:
        say("no profiles exist; create one with `kbroker profile create NAME -X brokers=HOST:PORT`")
    for name, settings in sorted(profiles.items()):
        shown = "  ".join(
            f"{key}={HIDDEN if key in SECRETS else value}" for key, value in settings.items()
        )
        say(f"{'*' if name == current else ' '} {name}  {shown}")


@profile.command()
@click.argument("name")
def use(name: str) -> None:
    """Select the profile NAME; `-` selects none."""
    _, profiles = read_profiles()
    if name != "-" and name not in profiles:
        from kbroker.client.cluster import did_you_mean

        raise click.UsageError(
            f"unknown profile {name!r}{did_you_mean(name, profiles)} "
            "`kbroker profile list` shows all profiles"
        )
    write_profiles("" if name == "-" else name, profiles)
    say("no profile is selected" if name == "-" else f"profile {name} is selected")


@profile.command()
@click.argument("name")
@click.option(
    "-X",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Store this setting, such as brokers=HOST:PORT; can be given several times.",
)
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Store the settings of a properties file of Kafka's clients (client.properties).",
)
def create(name: str, settings: tuple[str, ...], file: Path | None) -> None:
    """Create or replace the profile NAME, and select it."""
    if not settings and file is None:
        raise click.UsageError("give settings with -X KEY=VALUE or --file")
    found, unused = _settings_of_file(file) if file is not None else ({}, [])
    _, profiles = read_profiles()
    profiles[name] = found | parse_settings(settings)
    write_profiles(name, profiles)
    if unused:
        say(f"not stored, because commands do not use it: {', '.join(unused)}")
    say(f"profile {name} is selected")


def _settings_of_file(file: Path) -> tuple[dict[str, str], list[str]]:
    """Return the settings of a file that commands use, and the names of all others."""
    from kbroker.config import ConfigError, read_file

    try:
        given = read_file(file)
    except ConfigError as error:
        raise click.BadParameter(str(error), param_hint="--file") from None
    if KAFKA_BROKERS in given:
        given[BROKERS] = given.pop(KAFKA_BROKERS)
    known = {name: value for name, value in given.items() if name in SETTINGS}
    return known, [name for name in given if name not in SETTINGS]
