"""`kbroker profile`: names for clusters, so that commands need no addresses."""

from __future__ import annotations

import click

from .output import say
from .profiles import read_profiles, write_profiles
from .target import parse_settings


@click.group()
def profile() -> None:
    """Name clusters, and choose the one that commands speak to."""


@profile.command("list")
def list_() -> None:
    """Show all profiles; a star marks the one in use."""
    current, profiles = read_profiles()
    if not profiles:
        say("there are no profiles; `kbroker profile create NAME -X brokers=HOST:PORT`")
    for name, settings in sorted(profiles.items()):
        said = "  ".join(f"{key}={value}" for key, value in settings.items())
        say(f"{'*' if name == current else ' '} {name}  {said}")


@profile.command()
@click.argument("name")
def use(name: str) -> None:
    """Make commands speak to the cluster of profile NAME; `-` for none."""
    _, profiles = read_profiles()
    if name != "-" and name not in profiles:
        from kbroker.client.cluster import did_you_mean

        raise click.UsageError(
            f"there is no profile {name!r}{did_you_mean(name, profiles)} "
            "`kbroker profile list` shows them"
        )
    write_profiles("" if name == "-" else name, profiles)
    say("no profile is in use" if name == "-" else f"profile {name} is in use")


@profile.command()
@click.argument("name")
@click.option(
    "-X", "settings", multiple=True, required=True, metavar="KEY=VALUE", help="Such as brokers=h:p."
)
def create(name: str, settings: tuple[str, ...]) -> None:
    """Keep settings under NAME, and use them; replaces a profile of that name."""
    _, profiles = read_profiles()
    profiles[name] = parse_settings(settings)
    write_profiles(name, profiles)
    say(f"profile {name} is in use")
