"""Delegation tokens: list, creation, renewal and expiry."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.delegation_tokens import (
    BROKER_DEFAULT,
    create_delegation_token,
    delegation_token,
    describe_delegation_tokens,
    expire_delegation_token,
    renew_delegation_token,
)
from kbroker.client.errors import next_action
from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.protocol.primitives import INT64_MAX
from kbroker.security.principals import USER, Principal
from kbroker.text.times import iso_time

from .answers import ApiError, json_response, json_rows_response
from .api import Api, field, read_json_body, text_list
from .sessions import Viewer

# Maximum number of tokens per response.
TOKENS_MAX = 500
RENEWERS_MAX = 100
# Errors of a cluster or a viewer without delegation tokens.
_UNAVAILABLE = (
    ErrorCode.DELEGATION_TOKEN_AUTH_DISABLED,
    ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED,
)


class Tokens:
    """Routes for delegation tokens; the broker decides which tokens a viewer may see and change."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            self._api.read_route("/tokens", self._list),
            self._api.write_route("/tokens/create", self._create),
            self._api.write_route("/tokens/renew", self._renew),
            self._api.write_route("/tokens/expire", self._expire),
        ]

    async def _list(self, _: Request, viewer: Viewer) -> Response:
        """Return the tokens without their HMACs."""
        reason = None
        try:
            found = await describe_delegation_tokens(viewer.cluster)
        except KafkaError as error:
            if error.code not in _UNAVAILABLE:
                raise
            found, reason = [], next_action(error.code)
        principal = viewer.client.principal
        fields = {
            "unavailable": reason,
            "omitted": max(len(found) - TOKENS_MAX, 0),
            "may_alter": reason is None and self._api.may_write,
        }
        rows = (
            one.row(with_hmac=False)
            | {"may_alter": self._api.may_write and principal in (one.owner, *one.renewers)}
            for one in found[:TOKENS_MAX]
        )
        return await json_rows_response(fields, "tokens", rows)

    async def _create(self, request: Request, viewer: Viewer) -> Response:
        """Create a token; only this response contains its HMAC."""
        body = await read_json_body(request)
        renewers = [_principal(each) for each in text_list(body, "renewers", RENEWERS_MAX)]
        owner = field(body, "owner", str, "")
        created = await create_delegation_token(
            viewer.cluster,
            renewers,
            owner=_principal(owner) if owner else None,
            lifetime_ms=_duration_ms(body, "max_lifetime_ms"),
        )
        return json_response(created.row(with_hmac=True))

    async def _renew(self, request: Request, viewer: Viewer) -> Response:
        body = await read_json_body(request)
        period_ms = _duration_ms(body, "period_ms")
        token = await delegation_token(viewer.cluster, field(body, "token", str))
        expires_ms = await renew_delegation_token(viewer.cluster, token.hmac, period_ms)
        return json_response({"token": token.id, "expires": iso_time(expires_ms)})

    async def _expire(self, request: Request, viewer: Viewer) -> Response:
        body = await read_json_body(request)
        token = await delegation_token(viewer.cluster, field(body, "token", str))
        dry_run = field(body, "dry_run", bool, True)
        if not dry_run:
            await expire_delegation_token(viewer.cluster, token.hmac)
        return json_response({"dry_run": dry_run, **token.row(with_hmac=False)})


def _principal(text: str) -> Principal:
    """Return a principal; a name without a type is a user. Raises ApiError."""
    kind, colon, name = text.partition(":")
    principal = Principal(kind, name) if colon else Principal(USER, kind)
    if not principal.name:
        raise ApiError(400, "a principal is empty; write User:NAME")
    return principal


def _duration_ms(body: Mapping[str, object], name: str) -> int:
    """Return a duration in ms in a request body, by default that of the broker. Raises ApiError."""
    value = field(body, name, int, BROKER_DEFAULT)
    if value != BROKER_DEFAULT and not 0 < value <= INT64_MAX:
        raise ApiError(400, f"{name} must be from 1 to {INT64_MAX}")
    return value
