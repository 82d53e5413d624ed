"""The `kbroker profile` command: names clusters, so that commands need no addresses."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from kbroker.text.printable import printable

from .confirmation import Change, Preview, destructive, question_about
from .lazy import CommandGroup
from .output import Column, format_options, say, show, table
from .profiles import check_known, complete_profiles, read_profiles, toml_lines, write_profiles
from .schema_registries import registry_url
from .target import (
    BROKERS,
    DEFAULTS,
    KAFKA_BROKERS,
    REGISTRY,
    SECRETS,
    SETTINGS,
    check_setting,
    complete_client_settings,
    fail,
    merged,
    parse_addresses,
    parse_settings,
    security_of,
)

HIDDEN = "[hidden]"
# First lines of the text that `edit` opens.
EDIT_HELP = '# Settings of profile {name}: KEY = "VALUE" lines. Valid keys:\n# {keys}\n'


@click.group(cls=CommandGroup)
def profile() -> None:
    """Name clusters, and select the one that commands connect to."""


@profile.command("list")
@format_options
def list_(output: str) -> None:
    """Show all profiles without their secrets; an asterisk marks the selected one."""
    current, profiles = read_profiles()
    if not profiles:
        say(
            "no profiles exist; add one with `kbroker profile add NAME -X brokers=HOST:PORT`",
            err=True,
        )
    rows = [_row(name, current, settings) for name, settings in sorted(profiles.items())]
    columns = [Column("selected"), Column("name"), Column("brokers"), Column("security_protocol")]
    columns.append(Column("settings", wide=True))
    shown = [row | {"selected": "*" if row["selected"] else ""} for row in rows]
    show(output, rows, lambda wide: table(columns, shown, wide=wide) if rows else [])


def _row(name: str, current: str, settings: Mapping[str, str]) -> dict[str, object]:
    return {
        "name": name,
        "selected": name == current,
        "brokers": settings.get(BROKERS, DEFAULTS[BROKERS]),
        "security_protocol": settings.get("security.protocol", "PLAINTEXT"),
        "settings": _without_secrets(settings),
    }


def _without_secrets(settings: Mapping[str, str]) -> dict[str, str]:
    return {
        key: HIDDEN if key in SECRETS else _without_user(value) if key == REGISTRY else value
        for key, value in settings.items()
    }


def _without_user(url: str) -> str:
    """Return a URL without the user and password that it may contain."""
    before, _, host = url.rpartition("@")
    scheme, separator, _ = before.rpartition("://")
    return f"{scheme}{separator}{HIDDEN}@{host}" if before else url


@profile.command("show")
@click.argument("name", required=False, shell_complete=complete_profiles)
@format_options
def show_(name: str | None, output: str) -> None:
    """Show the settings of profile NAME, or of the selected one, without its secrets."""
    current, profiles = read_profiles()
    name = name or current
    if not name:
        raise click.UsageError("no profile is selected; name one, or see `kbroker profile list`")
    check_known(name, profiles)
    shown = _without_secrets(profiles[name])
    value = {"name": name, "selected": name == current, "settings": shown}
    lines = [f"{name}{' (selected)' if name == current else ''}"]
    lines += [f"  {key}={each}" for key, each in shown.items()]
    show(output, value, lambda _: lines)


@profile.command()
@click.argument("name", shell_complete=complete_profiles)
def use(name: str) -> None:
    """Select the profile NAME; `-` selects none."""
    _, profiles = read_profiles()
    if name != "-":
        check_known(name, profiles)
    write_profiles("" if name == "-" else name, profiles)
    say("no profile is selected" if name == "-" else f"profile {name} is selected")


@profile.command()
@click.argument("name")
@click.option(
    "-X",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_client_settings,
    help="Store this setting, such as brokers=HOST:PORT; can be given several times.",
)
@click.option(
    "--file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Store the settings of a properties file of Kafka's clients (client.properties).",
)
def add(name: str, settings: tuple[str, ...], file: Path | None) -> None:
    """Add the profile NAME, and select it if no profile is selected."""
    if not settings and file is None:
        raise click.UsageError("give settings with -X KEY=VALUE or --file")
    if name in ("", "-"):
        raise click.UsageError(f"{name!r} cannot be the name of a profile; choose another one")
    current, profiles = read_profiles()
    if name in profiles:
        raise click.UsageError(
            f"profile {name!r} already exists; change it with `kbroker profile edit` or choose "
            "another name"
        )
    found, unused = _settings_of_file(file) if file is not None else ({}, [])
    if file is not None:
        _check_file(file, found)
    profiles[name] = merged(found, parse_settings(settings))
    _check(profiles[name])
    write_profiles(current or name, profiles)
    if unused:
        say(f"not stored, because commands do not use it: {', '.join(unused)}")
    if current:
        say(
            f"profile {name} is added; profile {current} stays selected, change that with "
            f"`kbroker profile use {shlex.quote(name)}`"
        )
    else:
        say(f"profile {name} is selected")


@profile.command()
@click.argument("name", shell_complete=complete_profiles)
@click.option(
    "-X",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    shell_complete=complete_client_settings,
    help="Set this setting; can be given several times.",
)
@click.option(
    "--unset",
    "removed",
    multiple=True,
    metavar="KEY",
    help="Remove this setting; can be given several times.",
)
def edit(name: str, settings: tuple[str, ...], removed: tuple[str, ...]) -> None:
    """Change the settings of profile NAME; without options, in the editor $VISUAL or $EDITOR."""
    current, profiles = read_profiles()
    check_known(name, profiles)
    before = profiles[name]
    for key in removed:
        check_setting(key, "--unset")
    if settings or removed:
        after = {key: value for key, value in before.items() if key not in removed}
        after = merged(after, parse_settings(settings))
        _check(after)
    else:
        after = _edited(name, before)
    if after == before:
        say(f"profile {name} is unchanged")
        return
    current, profiles = read_profiles()  # other commands may have changed them in the meantime
    if profiles.get(name) != before:
        fail(
            f"profile {name!r} was changed or deleted in the meantime, and is kept as it is; repeat "
            "the change"
        )
    write_profiles(current, profiles | {name: after})
    say(f"profile {name} is changed")


@profile.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_profiles)
@destructive
def delete(names: tuple[str, ...], change: Change) -> None:
    """Delete the profiles NAMES."""
    current, profiles = read_profiles()
    for name in names:
        check_known(name, profiles)
    chosen = list(dict.fromkeys(names))
    rows = [{"profile": name, "brokers": profiles[name].get(BROKERS)} for name in chosen]
    lines = [f"profile {row['profile']}: {row['brokers'] or 'no brokers'}" for row in rows]
    if not change.confirm(Preview(question_about("Delete", chosen, "profile"), rows, lines)):
        return
    current, profiles = read_profiles()  # other commands may have changed them in the meantime
    kept = {name: settings for name, settings in profiles.items() if name not in names}
    write_profiles(current if current in kept else "", kept)
    deleted = [
        f"profile {name} is deleted{'; no profile is selected' if name == current else ''}"
        for name in chosen
    ]
    change.report(rows, lambda _: deleted)


def _check(settings: Mapping[str, str]) -> None:
    """Raise BadParameter if commands could not use the settings."""
    if BROKERS in settings:
        parse_addresses(settings[BROKERS], BROKERS)
    security_of(settings)
    registry_url(settings, None)


def _check_file(file: Path, settings: Mapping[str, str]) -> None:
    """Raise BadParameter with file and line if commands could not use the settings of a file."""
    try:
        _check(settings)
    except click.BadParameter as error:
        subject = f"{KAFKA_BROKERS}=" if error.param_hint == BROKERS else error.message
        place = _line_of(file, subject)
        raise click.BadParameter(error.message, param_hint=place) from None


def _line_of(file: Path, subject: str) -> str:
    """Return a file and the line of the setting with whose name `subject` begins."""
    text = file.read_text(encoding="utf-8", errors="replace")
    for number, line in enumerate(text.splitlines(), 1):
        name = line.strip().partition("=")[0].partition(":")[0].strip(' "')
        if name and subject.startswith((f"{name} ", f"{name}=", f"{name}:", f"{name},")):
            return f"{file}, line {number}"
    return str(file)


def _edited(name: str, settings: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that a user saves in an editor.

    On a terminal, the editor opens again if they are invalid, until the user saves no change.
    """
    text = EDIT_HELP.format(name=name, keys=" ".join(SETTINGS))
    text += "".join(f"{line}\n" for line in toml_lines(settings))
    while True:
        saved = click.edit(text, extension=".toml")
        if saved is None:
            return dict(settings)
        try:
            return _parsed(saved)
        except (ValueError, click.BadParameter) as error:
            reason = error.format_message() if isinstance(error, click.BadParameter) else str(error)
            if not sys.stdin.isatty():
                raise click.UsageError(f"profile {name!r} is unchanged: {reason}") from None
            text = f"# {printable(reason)}\n{saved}"


def _parsed(text: str) -> dict[str, str]:
    """Return the settings of an edited text. Raises ValueError or BadParameter."""
    from kbroker.text.documents import read_toml

    found = {}
    for key, value in read_toml(text).items():
        if not isinstance(value, str):
            raise click.BadParameter('expected a value in quotes, such as "VALUE"', param_hint=key)
        found[BROKERS if key == KAFKA_BROKERS else key] = value
    for key in found:
        check_setting(key, "setting")
    _check(found)
    return found


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
