"""`kbroker config`: what a setting means, and which settings a server would have."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from .config_broker import HIDDEN, broker_options, named, show_running
from .lazy import LazyGroup
from .output import Column, format_options, paragraphs, say, show, table
from .settings import setting_options, split_overrides
from .target import Target, target_options

if TYPE_CHECKING:
    from kbroker.config import BrokerConfig

COMMANDS = {
    "explain": ("kbroker.cli.config:explain", "Say what settings mean."),
    "set": ("kbroker.cli.config_broker:set_", "Set settings of brokers that run."),
    "show": ("kbroker.cli.config:show_", "Show the settings that a server would have, or has."),
    "unset": ("kbroker.cli.config_broker:unset", "Take settings of brokers that run back."),
}


@click.group(cls=LazyGroup, lazy=COMMANDS)
def config() -> None:
    """Explain settings; show and change those of servers."""


@click.command()
@click.argument("names", nargs=-1, required=True)
@format_options
def explain(names: tuple[str, ...], output: str) -> None:
    """Say what the settings NAMES mean: type, default, limits, effect, and how to give them."""
    from kbroker.config import ConfigError
    from kbroker.config.explain import explain as facts_of

    try:
        facts = [each for name in names for each in facts_of(name)]
    except ConfigError as error:
        raise click.ClickException(str(error)) from None
    show(output, facts, lambda _: paragraphs(map(_paragraph, facts)))


def _paragraph(facts: Mapping[str, object]) -> list[str]:
    """One setting as text: its name and meaning, then a line for each other fact."""
    lines = [f"{facts['name']} ({facts['of']} setting)", f"  {facts['meaning']}"]
    for key, value in facts.items():
        if key not in ("name", "of", "meaning") and value is not None:
            shown = ", ".join(value) if isinstance(value, list) else value or "empty"
            lines.append(f"  {key.replace('_', ' '):17} {shown}")
    return lines


@click.command("show")
@click.option("--diff", is_flag=True, help="Only settings that differ from their default.")
@setting_options
@broker_options
@target_options
@partial(format_options, short=False)
def show_(
    target: Target, diff: bool, output: str, node: int | None, default: bool, **flags: Any
) -> None:
    """Show the settings that `kbroker serve` with the same flags and environment would have.

    SOURCE is the flag, environment or file that a value comes from; - is the default. No server is
    asked. With --node or --default a running one is, any Kafka, for what it has: SOURCE is then
    "this broker" or "all brokers" for what was set while it runs, and "static" for what it was
    started with.
    """
    if default or node is not None:
        show_running(target, named(node, default), output, diff=diff)
        return
    _show_what_would_be(diff, output, flags)


def _show_what_would_be(diff: bool, output: str, flags: dict[str, Any]) -> None:
    from kbroker.config import ConfigError
    from kbroker.process.flags import SettingFlags, load_settings

    flags["overrides"] = split_overrides(flags["overrides"])
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
