"""SCRAM users: list, creation, passwords and deletion."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence

import trio
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from kbroker.client.errors import ClientError
from kbroker.client.scram_users import (
    describe_scram_users,
    remove_scram_password,
    served_scram_mechanisms,
    set_scram_password,
)
from kbroker.protocol.errors import KafkaError
from kbroker.security.acls import AclOperation
from kbroker.security.principals import USER, Principal
from kbroker.security.scram import ITERATIONS_MAX, ITERATIONS_MIN, ScramMechanism

from .answers import ApiError, api_error_of, json_response, json_rows_response
from .api import ALTER_CLUSTER, DESCRIBE_CLUSTER, Api, field, read_json_body, text_list
from .sessions import Viewer
from .statuses import UNREACHABLE

# Maximum number of users per response.
USERS_MAX = 500
# Maximum number of characters of a password.
PASSWORD_MAX = 1_024
# Time limit for the changes of a user's credentials.
CHANGE_SECONDS = 10


class Users:
    """Routes for users; no response contains a password or its hash."""

    def __init__(self, api: Api) -> None:
        self._api = api

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [
            self._api.read_route("/users", self._list, DESCRIBE_CLUSTER),
            self._api.write_route("/users/set", self._set, ALTER_CLUSTER),
            self._api.write_route("/users/delete", self._delete, ALTER_CLUSTER),
        ]

    async def _list(self, _: Request, viewer: Viewer) -> Response:
        found = await describe_scram_users(viewer.cluster)
        fields = {
            "mechanisms": await served_scram_mechanisms(viewer.cluster),
            "valid_mechanisms": [*ScramMechanism],
            "iterations": {"min": ITERATIONS_MIN, "max": ITERATIONS_MAX},
            "omitted": max(len(found) - USERS_MAX, 0),
            "may_alter": self._api.may_change(viewer, AclOperation.ALTER),
        }
        rows = [{"user": one.name, "iterations": one.iterations} for one in found[:USERS_MAX]]
        return await json_rows_response(fields, "users", rows)

    async def _set(self, request: Request, viewer: Viewer) -> Response:
        """Create a user, or change the password of a user."""
        body = await read_json_body(request)
        name, password = _user_name(body), field(body, "password", str)
        if not 0 < len(password) <= PASSWORD_MAX:
            raise ApiError(400, f"password must have 1 to {PASSWORD_MAX:,} characters")
        iterations = field(body, "iterations", int, ITERATIONS_MIN)
        if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
            raise ApiError(400, f"iterations must be from {ITERATIONS_MIN} to {ITERATIONS_MAX}")
        chosen = _mechanisms(body)
        served = await served_scram_mechanisms(viewer.cluster)
        enabled = chosen or list(served or ()) or [ScramMechanism.SHA_256]
        await _change_each(
            enabled,
            lambda each: set_scram_password(viewer.cluster, name, password, each, iterations),
        )
        unusable = [] if served is None else [each for each in enabled if each not in served]
        return json_response({"user": name, "mechanisms": enabled, "unusable": unusable})

    async def _delete(self, request: Request, viewer: Viewer) -> Response:
        """Remove the credentials of a user for some mechanisms, or for all."""
        body = await read_json_body(request)
        name = _user_name(body)
        (found,) = await describe_scram_users(viewer.cluster, [name])
        chosen = _mechanisms(body) or list(found.iterations)
        dry_run = field(body, "dry_run", bool, True)
        if not dry_run:
            await _change_each(
                chosen, lambda each: remove_scram_password(viewer.cluster, name, each)
            )
        return json_response(
            {
                "dry_run": dry_run,
                "user": name,
                "mechanisms": chosen,
                "remaining": [each for each in found.iterations if each not in chosen],
                "is_viewer": viewer.client.principal == Principal(USER, name),
            }
        )


async def _change_each(
    mechanisms: Sequence[ScramMechanism], change: Callable[[ScramMechanism], Awaitable[None]]
) -> None:
    """Change the credential of each mechanism: brokers accept only one change per user and request.

    The changes continue if the viewer disconnects, because otherwise the previous password would
    still be valid for the other mechanisms.

    Raises:
        ApiError: A change failed; the reason names the mechanisms that were changed before.
    """
    changed: list[ScramMechanism] = []
    failed = ApiError(UNREACHABLE, f"no response within {CHANGE_SECONDS} s")
    with trio.move_on_after(CHANGE_SECONDS) as limit:
        limit.shield = True
        try:
            for each in mechanisms:
                await change(each)
                changed.append(each)
        except (KafkaError, ClientError, OSError) as error:
            failed = api_error_of(error)
    if len(changed) == len(mechanisms):
        return
    left = mechanisms[len(changed) :]
    partly = f"; changed: {', '.join(changed)}, not changed: {', '.join(left)}; try again"
    raise ApiError(failed.status, f"{failed}{partly if changed else ''}")


def _user_name(body: Mapping[str, object]) -> str:
    name = field(body, "user", str)
    if not name:
        raise ApiError(400, "user is empty; give the name of a user")
    return name


def _mechanisms(body: Mapping[str, object]) -> Sequence[ScramMechanism]:
    try:
        return [ScramMechanism(each) for each in text_list(body, "mechanisms", 10)]
    except ValueError:
        valid = ", ".join(ScramMechanism)
        raise ApiError(400, f"mechanisms: unknown SCRAM mechanism (valid: {valid})") from None
