"""The `--registry` option, which names a schema registry."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, TypeVar

import click

from .target import (
    REGISTRY,
    REGISTRY_LOGIN,
    complete_client_settings,
    fail,
    given_of,
    profile_option,
    registry_of,
    settings_of,
)

if TYPE_CHECKING:
    from kbroker.client.schema_registry import SchemaError, SchemaRegistry

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
        BadParameter: The value is not a URL, or the user is invalid.
    """
    url = registry_of(settings, given, option)
    if url is not None and not url.startswith(("http://", "https://")):
        shown = "" if "@" in url else f" {url!r}"
        raise click.BadParameter(
            f"invalid URL{shown}; expected http://HOST:PORT",
            param_hint=option if given else REGISTRY,
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


def registry_command(command: Command) -> Command:
    """Add `--registry`, `-X` and `--profile` to a command without a cluster; it receives `registry`."""

    @registry_option
    @click.option(
        "-X",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help=f"Set {REGISTRY}, or NAME:PASSWORD for it with {REGISTRY_LOGIN}; can be given several "
        "times.",
        shell_complete=complete_client_settings,
    )
    @profile_option
    @functools.wraps(command)
    def with_registry(
        *args: object,
        registry: str | None,
        settings: tuple[str, ...],
        profile: str | None,
        **kw: object,
    ) -> object:
        known = settings_of(given_of(click.get_current_context())).settings
        client = chosen_registry(known, registry)
        if client is None:
            raise click.UsageError(
                f"no schema registry; use --registry URL, -X {REGISTRY}=URL, or a profile with it"
            )
        from kbroker.client.schema_registry import SchemaError

        try:
            return command(*args, registry=client, **kw)
        except SchemaError as error:
            fail(_text_of(error))

    return with_registry  # type: ignore[return-value]


def _text_of(error: SchemaError) -> str:
    """Return the message of a registry error, with the next action."""
    from kbroker.client.schema_registry import RegistryRejection

    if not isinstance(error, RegistryRejection):
        return str(error)
    action = next(
        (text for code, text in _ACTIONS.items() if str(error.code).startswith(code)), None
    )
    return f"{error.reason.rstrip('.')}{f'; {action}' if action else ''}"


# Next action by the first digits of an error code.
_ACTIONS = {
    "401": f"set the user with -X {REGISTRY_LOGIN}=NAME:PASSWORD",
    "403": "ask an administrator for the permission",
    "40401": "`kbroker registry list` shows all subjects",
    "40402": "`kbroker registry list` shows the versions of all subjects",
    "409": "`kbroker registry check` lists what is incompatible",
}
