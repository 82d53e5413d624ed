"""The `--registry` option, which names a schema registry."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from .target import REGISTRY, registry_of

if TYPE_CHECKING:
    from kbroker.client.schema_registry import SchemaRegistry

Command = TypeVar("Command", bound=Callable[..., object])


def registry_option(command: Command) -> Command:
    """Add `--registry` to a command; it receives `registry`."""
    return click.option(
        "--registry",
        metavar="URL",
        help=f"URL of the schema registry.  [default: {REGISTRY} of -X or of the profile]",
    )(command)


def registry_url(
    settings: Mapping[str, str], given: str | None, option: str = "--registry"
) -> str | None:
    """Return the URL of the given registry, or else that of the settings, or None.

    Args:
        settings: Settings of the command, which may contain a user for the registry.
        given: Value of the option.
        option: Name of the option, for messages.

    Raises:
        BadParameter: The value is not a URL.
    """
    url = registry_of(settings, given)
    if url is not None and not url.startswith(("http://", "https://")):
        raise click.BadParameter(
            f"invalid URL {url!r}; expected http://HOST:PORT", param_hint=option
        )
    return url


def chosen_registry(
    settings: Mapping[str, str], given: str | None, needed_by: str | None = None
) -> SchemaRegistry | None:
    """Return a client of the chosen registry, or None if no registry is known.

    Args:
        settings: Settings of the command.
        given: Value of `--registry`.
        needed_by: Option that needs a registry, if one does.

    Raises:
        BadParameter: The value is not a URL.
        UsageError: A registry is needed but not known.
    """
    url = registry_url(settings, given)
    if url is None:
        if needed_by is not None:
            raise click.UsageError(f"{needed_by} needs --registry URL, or -X {REGISTRY}=URL")
        return None
    from kbroker.client.schema_registry import SchemaRegistry

    return SchemaRegistry(url)
