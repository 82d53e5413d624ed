"""The file of profiles: named settings of clusters."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import click

from .output import say

FILE_VARIABLE = "KBROKER_PROFILES"


def profiles_path() -> Path:
    """Return the path of the file; an environment variable may override it."""
    named = os.environ.get(FILE_VARIABLE)
    return Path(named) if named else Path(click.get_app_dir("kbroker"), "profiles.toml")


def current_profile() -> tuple[str, dict[str, str]]:
    """Return the name and the settings of the selected profile; both empty if none is selected."""
    current, profiles = read_profiles()
    return current, profiles.get(current, {})


def profile_named(name: str) -> tuple[str, dict[str, str]]:
    """Return the name and the settings of a profile.

    Raises:
        UsageError: The profile does not exist.
    """
    _, profiles = read_profiles()
    check_known(name, profiles)
    return name, profiles[name]


def complete_profiles(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the profiles whose names start with the typed text, if a shell reads them as one word."""
    return sorted(
        name
        for name in read_profiles()[1]
        if name.startswith(incomplete) and shlex.quote(name) == name
    )


def check_known(name: str, profiles: Collection[str]) -> None:
    """Raise UsageError if a profile does not exist."""
    if name not in profiles:
        from kbroker.client.cluster import did_you_mean

        raise click.UsageError(
            f"unknown profile {name!r}{did_you_mean(name, profiles) or '.'} "
            "`kbroker profile list` shows all profiles"
        )


def read_profiles() -> tuple[str, dict[str, dict[str, str]]]:
    """Return the name of the selected profile, "" for none, and all profiles."""
    from kbroker.text.documents import read_toml

    path = profiles_path()
    try:
        data: dict[str, Any] = read_toml(path.read_text(encoding="utf-8"))
        profiles = {
            str(name): {str(key): str(value) for key, value in settings.items()}
            for name, settings in data.get("profiles", {}).items()
        }
    except FileNotFoundError:
        return "", {}
    except (OSError, ValueError, AttributeError) as error:
        say(f"kbroker: {path}: cannot read it ({error}); correct or delete the file", err=True)
        sys.exit(2)
    return str(data.get("current", "")), profiles


def write_profiles(current: str, profiles: dict[str, dict[str, str]]) -> None:
    """Write the name of the selected profile, and all profiles."""
    lines = [f"current = {json.dumps(current)}"]
    for name, settings in profiles.items():
        lines += ["", f"[profiles.{json.dumps(name)}]", *toml_lines(settings)]
    path = profiles_path()
    temporary = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.touch(mode=0o600)  # the file may contain passwords
        temporary.write_text("\n".join(lines) + "\n", encoding="utf-8")
        temporary.replace(path)
    except OSError as error:
        say(
            f"kbroker: {path}: cannot write it ({error.strerror}); name another file with "
            f"{FILE_VARIABLE}",
            err=True,
        )
        sys.exit(1)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()  # after an error or Ctrl+C; it may contain passwords


def toml_lines(settings: Mapping[str, str]) -> list[str]:
    """Return settings as lines of TOML."""
    return [f"{json.dumps(key)} = {json.dumps(value)}" for key, value in settings.items()]
