"""`kbroker profile`: names for clusters, so that commands need no addresses."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from pathlib import Path
from typing import Any

import click

from .output import say

FILE_VARIABLE = "KBROKER_PROFILES"


def profiles_path() -> Path:
    """Where profiles are kept; the environment may name another file."""
    named = os.environ.get(FILE_VARIABLE)
    return Path(named) if named else Path(click.get_app_dir("kbroker"), "profiles.toml")


def current_settings() -> dict[str, str]:
    """The settings of the profile in use; none without one."""
    current, profiles = read_profiles()
    return profiles.get(current, {})


def read_profiles() -> tuple[str, dict[str, dict[str, str]]]:
    """The name of the profile in use, empty for none, and all profiles."""
    from kbroker.text.documents import read_toml

    path = profiles_path()
    try:
        data: dict[str, Any] = read_toml(path.read_text())
        profiles = {
            str(name): {str(key): str(value) for key, value in settings.items()}
            for name, settings in data.get("profiles", {}).items()
        }
    except FileNotFoundError:
        return "", {}
    except (OSError, ValueError, AttributeError) as error:
        say(f"kbroker: {path} cannot be read ({error}); correct or remove it", err=True)
        sys.exit(2)
    return str(data.get("current", "")), profiles


def _write(current: str, profiles: dict[str, dict[str, str]]) -> None:
    lines = [f"current = {json.dumps(current)}"]
    for name, settings in profiles.items():
        lines += ["", f"[profiles.{json.dumps(name)}]"]
        lines += [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in settings.items()]
    path = profiles_path()
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text("\n".join(lines) + "\n")
        temporary.replace(path)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        say(
            f"kbroker: {path} cannot be written ({error.strerror}); name another file with "
            f"{FILE_VARIABLE}",
            err=True,
        )
        sys.exit(1)


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
    _write("" if name == "-" else name, profiles)
    say("no profile is in use" if name == "-" else f"profile {name} is in use")


@profile.command()
@click.argument("name")
@click.option(
    "-X", "settings", multiple=True, required=True, metavar="KEY=VALUE", help="Such as brokers=h:p."
)
def create(name: str, settings: tuple[str, ...]) -> None:
    """Keep settings under NAME, and use them; replaces a profile of that name."""
    from .target import parse_settings

    _, profiles = read_profiles()
    profiles[name] = parse_settings(settings)
    _write(name, profiles)
    say(f"profile {name} is in use")
