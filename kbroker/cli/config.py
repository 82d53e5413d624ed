"""The `kbroker config` command: describes settings, and shows those of a server."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from .config_broker import broker_options, resource_name, show_running
from .lazy import LazyGroup
from .output import Column, format_options, paragraphs, say, show, table
from .resource_settings import HIDDEN
from .setting_completion import complete_setting_names
from .settings import parse_broker_settings, setting_options
from .target import Target, target_options

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig

COMMANDS = {
    "explain": ("kbroker.cli.config:explain", "Describe settings."),
    "log-level": (
        "kbroker.cli.config_log_level:log_level",
        "Show and change log levels of running brokers.",
    ),
    "set": ("kbroker.cli.config_broker:set_", "Set settings of running brokers."),
    "show": (
        "kbroker.cli.config:show_",
        "Show the settings that a server would use, or those of a running broker.",
    ),
    "unset": ("kbroker.cli.config_broker:unset", "Reset settings of running brokers."),
}


# Labels of facts in the text form; the names in JSON stay as they are.
LABELS = {
    "else_from_broker": "broker setting",
    "give_it": "set with",
    "only_kbroker": "kbroker only",
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def config() -> None:
    """Explain settings; show and change those of brokers."""


@click.command()
@click.argument("names", nargs=-1, required=True, shell_complete=complete_setting_names)
@format_options
def explain(names: tuple[str, ...], output: str) -> None:
    """Describe the settings NAMES: type, default, limits, effect, and how to set them.

    For a word that is not a setting, such as tombstone, the command lists the settings with this
    word in their name or description.
    """
    from kbroker.config import ConfigError
    from kbroker.config.explain import explain as facts_of
    from kbroker.config.explain import search

    described, listed = [], []
    for name in names:
        try:
            described += facts_of(name)
        except ConfigError as error:
            found = search(name)
            if not found:
                raise click.ClickException(str(error)) from None
            listed += found

    def text(wide: bool) -> list[str]:
        columns = [Column("name"), Column("of"), Column("meaning")]
        rows = [each | {"meaning": _first_sentence(str(each["meaning"]))} for each in listed]
        parts = [*map(_paragraph, described), *([table(columns, rows, wide=wide)] if rows else [])]
        return paragraphs(parts)

    show(output, [*described, *listed], text)


def _first_sentence(text: str) -> str:
    return text.partition(". ")[0].rstrip(".")


def _paragraph(facts: Mapping[str, object]) -> list[str]:
    """Return the text for one setting: its name and description, then a line for each other fact."""
    lines = [f"{facts['name']} ({facts['of']} setting)", f"  {facts['meaning']}"]
    for key, value in facts.items():
        if key not in ("name", "of", "meaning") and value is not None:
            shown = ", ".join(value) if isinstance(value, list) else value or "empty"
            lines.append(f"  {LABELS.get(key, key.replace('_', ' ')):17} {shown}")
    return lines


@click.command("show")
@click.option("--diff", is_flag=True, help="Show only settings that differ from their default.")
@setting_options
@broker_options
@target_options
@partial(format_options, short=False)
def show_(
    target: Target, diff: bool, output: str, node: int | None, default: bool, **flags: Any
) -> None:
    """Show the settings that `kbroker serve` with the same flags and environment would use.

    SOURCE is the flag, environment or file that a value comes from; - means the default. The
    command connects to no server.

    With --node or --default it shows the settings of a running broker, kbroker or Apache Kafka.
    SOURCE is then "this broker" or "all brokers" for dynamic settings, and "static" for settings
    from its start.
    """
    if default or node is not None:
        show_running(target, resource_name(node, default), output, diff=diff)
        return
    _show_static(diff, output, flags)


def _show_static(diff: bool, output: str, flags: dict[str, Any]) -> None:
    from kbroker.config import ConfigError
    from kbroker.process.flags import SettingFlags, load_settings

    flags["overrides"] = parse_broker_settings(flags["overrides"])
    try:
        loaded = load_settings(SettingFlags(**flags), os.environ)
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    for notice in loaded.notices:
        if notice.level == "warning":
            say(f"warning: {notice.text}", err=True)
    rows = _rows(loaded, diff=diff)
    columns = (Column("name"), Column("value"), Column("default", wide=True), Column("source"))
    show(output, rows, lambda wide: table(columns, rows, wide=wide))


def _rows(loaded: BrokerConfig, *, diff: bool) -> list[dict[str, object]]:
    from kbroker.config import BROKER_PROPERTIES

    return [
        {
            "name": name,
            "value": HIDDEN
            if each.sensitive and loaded[name] is not None
            else each.format(loaded[name]),
            "default": each.default_for(loaded.nodes),
            "source": loaded.origin(name),
        }
        for name, each in BROKER_PROPERTIES.items()
        if not diff or not loaded.is_default(name)
    ]
