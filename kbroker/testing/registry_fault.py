"""Faults of the schema registry, and their injection into its HTTP application."""

from __future__ import annotations

import json
from collections.abc import Iterable

import trio

from kbroker.schemas.core.errors import CONTENT_TYPE, RegistryError
from kbroker.web.guard import END_CONNECTION, App, Message, Receive, Send

from .any_fault import AnyFault, Waited
from .arguments import parse_choice
from .names import is_applied_after_handling
from .registry_calls import CallRule, CallTarget, parse_call
from .rules import Faults
from .schedule import Effect

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")
# Effects of a schema registry fault, other than `error`.
CALL_EFFECTS = (Effect.PASS, Effect.DISCONNECT, Effect.DELAY, Effect.BLACKHOLE)


class RegistryFault(AnyFault[CallRule, Waited]):
    """One armed fault of the schema registry; see `Arming.registry_fault`."""


def new_call_rule(
    method: str | Iterable[str] | None = None,
    *,
    path: str | None = None,
    subject: str | None = None,
    error: int | None = None,
    at: str = "before",
) -> CallRule:
    """Create the rule of a fault from the arguments of `Arming.registry_fault`.

    Raises:
        ValueError: An argument is invalid.
    """
    names = [method] if isinstance(method, str) else method or ()
    methods = frozenset(parse_choice("method", each, METHODS) for each in names)
    if path is not None and not path.startswith(("/", "*")):
        raise ValueError(f"invalid path {path!r}: a path begins with / or *, as in /subjects/*")
    rule = CallRule(CallTarget(methods, path, subject), after=is_applied_after_handling(at))
    if error is not None:
        rule.effect, rule.code = Effect.ERROR, _checked_error(error)
    return rule


def _checked_error(error: int) -> int:
    """Check an error of the registry: an HTTP status, or an HTTP status and two digits."""
    if type(error) is not int or not (400 <= error <= 599 or 40_000 <= error <= 59_999):
        raise ValueError(
            f"invalid schema registry error {error!r}: pass an HTTP status from 400 to 599, or one "
            "followed by two digits, for example 40401"
        )
    return error


class FaultInjectingApp:
    """ASGI application that injects faults into the calls of another application."""

    def __init__(self, faults: Faults, app: App) -> None:
        self._faults = faults
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        rule = self._faults.match_call(parse_call(scope)) if scope["type"] == "http" else None
        if rule is None:
            await self._app(scope, receive, send)
            return
        response: list[Message] = []
        if rule.after:
            await self._app(scope, receive, _collector(response))
        await _apply_effect(rule, scope, send)
        if rule.effect is not Effect.DELAY:
            return
        if not rule.after:
            await self._app(scope, receive, send)
        for message in response:
            await send(message)


def _collector(messages: list[Message]) -> Send:
    """Return a `send` that collects messages instead of sending them."""

    async def collect(message: Message) -> None:
        messages.append(message)

    return collect


async def _apply_effect(rule: CallRule, scope: Message, send: Send) -> None:
    """Send an error response, close the connection, or wait for the delay."""
    if rule.effect is Effect.ERROR:
        error = RegistryError(rule.code, f"fault: {rule}")
        body = json.dumps({"error_code": error.code, "message": error.message}).encode()
        headers = [
            (b"content-type", CONTENT_TYPE.encode()),
            (b"content-length", b"%d" % len(body)),
        ]
        await send({"type": "http.response.start", "status": error.status, "headers": headers})
        await send({"type": "http.response.body", "body": body})
    elif rule.effect is Effect.DELAY:
        await trio.sleep(rule.milliseconds / 1000)
    else:
        if rule.effect is Effect.DISCONNECT:
            scope["extensions"][END_CONNECTION]()
        await trio.sleep_forever()  # the server cancels this when the connection is closed
