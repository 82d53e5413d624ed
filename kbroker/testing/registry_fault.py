"""Faults of the schema registry: what a test says of them, and how calls are hit."""

from __future__ import annotations

import json
from collections.abc import Iterable

import trio

from kbroker.schemas.core.errors import CONTENT_TYPE, RegistryError
from kbroker.web.guard import END_CONNECTION, App, Message, Receive, Send

from .any_fault import AnyFault, Waited
from .calls import CallRule, CallTarget, parse_call
from .given import one_of
from .names import is_after
from .rules import Faults
from .schedule import Effect

METHODS = ("GET", "HEAD", "POST", "PUT", "DELETE")
CALL_EFFECTS = (Effect.PASS, Effect.DISCONNECT, Effect.DELAY, Effect.BLACKHOLE)
"""What a fault of the registry can do besides `error`."""


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
    """The rule that the words of a test mean. Raises ValueError, with what there is instead."""
    names = [method] if isinstance(method, str) else method or ()
    methods = frozenset(one_of("method", each, METHODS) for each in names)
    if path is not None and not path.startswith(("/", "*")):
        raise ValueError(f"a path begins with /, as in /subjects/*, not {path!r}")
    rule = CallRule(CallTarget(methods, path, subject), after=is_after(at))
    if error is not None:
        rule.effect, rule.code = Effect.ERROR, _checked_error(error)
    return rule


def _checked_error(error: int) -> int:
    """A number as the registry has them: a status of HTTP, and two digits more for some."""
    if type(error) is not int or not (400 <= error <= 599 or 40_000 <= error <= 59_999):
        raise ValueError(
            "an error of the schema registry is a status of HTTP from 400 to 599, or such a one and "
            f"two digits more, 40401 or 50001 for instance, not {error!r}"
        )
    return error


class FaultInjectingApp:
    """Asks `faults` what to do with each call, and lets the application do the rest."""

    def __init__(self, faults: Faults, app: App) -> None:
        self._faults = faults
        self._app = app

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        rule = self._faults.match_call(parse_call(scope)) if scope["type"] == "http" else None
        if rule is None:
            await self._app(scope, receive, send)
            return
        said: list[Message] = []
        if rule.after:
            await self._app(scope, receive, _kept(said))
        await _apply_effect(rule, scope, send)
        if rule.effect is not Effect.DELAY:
            return
        if not rule.after:
            await self._app(scope, receive, send)
        for message in said:
            await send(message)


def _kept(said: list[Message]) -> Send:
    """Takes an answer that is to come later, or never."""

    async def keep(message: Message) -> None:
        said.append(message)

    return keep


async def _apply_effect(rule: CallRule, scope: Message, send: Send) -> None:
    """Answer with the error, end the connection, or take the time that it takes."""
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
        await trio.sleep_forever()  # the connection's end ends this too
