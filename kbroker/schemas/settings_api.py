"""REST API for compatibility levels and modes, as in Confluent's registry."""

from __future__ import annotations

from collections.abc import Iterable

from starlette.requests import Request
from starlette.routing import Route

from kbroker.security.acls import AclOperation

from .answers import route
from .calls import AuthorizedCalls
from .core import registry
from .core.values import Level, Mode
from .requests import body_of, flag, subject_of


class SettingsApi:
    """Serves the settings of the registry and of its subjects."""

    def __init__(self, calls: AuthorizedCalls) -> None:
        self._calls = calls

    def routes(self) -> Iterable[Route]:
        """Return the routes, each call with the permission that it needs."""
        read_call, with_permission = self._calls.read_call, self._calls.with_permission
        for path in ("/config", "/config/{subject}"):
            yield route(
                path,
                GET=read_call(self._config),
                PUT=with_permission(AclOperation.ALTER_CONFIGS, self._put_config),
                DELETE=with_permission(AclOperation.ALTER_CONFIGS, self._delete_config),
            )
        for path in ("/mode", "/mode/{subject}"):
            yield route(
                path,
                GET=read_call(self._mode),
                PUT=with_permission(AclOperation.ALTER_CONFIGS, self._put_mode),
                DELETE=with_permission(AclOperation.ALTER_CONFIGS, self._delete_mode),
            )

    def _config(self, request: Request) -> object:
        subject = subject_of(request)
        own = self._calls.store.config(subject)
        if subject is not None and own is None:
            if not flag(request, "defaultToGlobal"):
                raise registry.no_own_level(subject)
            own = self._calls.store.config(None)
        return {
            "compatibilityLevel": Level.BACKWARD,
            **{key: value for key, value in (own or {}).items() if key != "subject"},
        }

    async def _put_config(self, request: Request) -> object:
        subject, body = subject_of(request), await body_of(request)
        return await self._calls.write(
            request, lambda store: registry.plan_config(store, subject, body)
        )

    async def _delete_config(self, request: Request) -> object:
        subject = subject_of(request)
        body = await self._calls.write(
            request, lambda store: registry.plan_config_deletion(store, subject)
        )
        return {key: value for key, value in body.items() if key != "subject"}

    def _mode(self, request: Request) -> object:
        subject = subject_of(request)
        own = self._calls.store.own_mode(subject)
        if subject is not None and own is None:
            if not flag(request, "defaultToGlobal"):
                raise registry.no_own_mode(subject)
            own = self._calls.store.own_mode(None)
        return {"mode": own or Mode.READWRITE}

    async def _put_mode(self, request: Request) -> object:
        subject, body, force = subject_of(request), await body_of(request), flag(request, "force")
        mode = body.get("mode")
        return await self._calls.write(
            request, lambda store: registry.plan_mode(store, subject, mode, force=force)
        )

    async def _delete_mode(self, request: Request) -> object:
        subject = subject_of(request)
        return await self._calls.write(
            request, lambda store: registry.plan_mode_deletion(store, subject)
        )
