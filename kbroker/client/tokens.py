"""OAUTHBEARER token sources: a file, or a token endpoint (KIP-768)."""

from __future__ import annotations

import json
import math
from base64 import b64encode
from collections.abc import Mapping
from functools import partial
from importlib.util import find_spec
from urllib.parse import urlencode

import trio

from kbroker.security.errors import BadSettings
from kbroker.security.jaas import LoginModule
from kbroker.security.stores import read_file
from kbroker.security.urls import client_context_of, file_of, without_query

TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
SCOPE = "sasl.oauthbearer.scope"
SETTINGS = (TOKEN_URL, CLIENT_ID, CLIENT_SECRET, SCOPE)
FETCH_SECONDS = 10.0
ANSWER_BYTES_MAX = 128 * 1024
# Fraction of a token's lifetime during which it is reused, as in the Java client.
REUSE_FRACTION = 0.8


class TokenSource:
    """Provides bearer tokens according to Kafka's client settings.

    Options of ``sasl.jaas.config`` (before KIP-1139) are supported too. A token file is read for
    each use, because another process may replace it.

    Raises:
        BadSettings: A setting is missing or invalid.
    """

    def __init__(self, settings: Mapping[str, str], module: LoginModule) -> None:
        def setting(name: str, option: str) -> str:
            return settings.get(name) or module.options.get(option, "")

        self._url = settings.get(TOKEN_URL, "")
        if not self._url:
            raise BadSettings(
                f"{TOKEN_URL} is missing: set it to file:///PATH of a token, or to https://HOST/PATH "
                "of a token endpoint"
            )
        self._file = file_of(TOKEN_URL, self._url)
        self._id, self._secret = (
            setting(CLIENT_ID, "clientId"),
            setting(CLIENT_SECRET, "clientSecret"),
        )
        self._scope = setting(SCOPE, "scope")
        self._trusted = None if self._file else client_context_of(module)
        if self._file is None and find_spec("h11") is None:
            raise BadSettings(
                f"{TOKEN_URL} with https needs an extra package: pip install 'kbroker[oauth]'"
            )
        if self._file is None and not (self._id and self._secret):
            raise BadSettings(
                f"{TOKEN_URL} needs {CLIENT_ID} and {CLIENT_SECRET}, or clientId and clientSecret in "
                "sasl.jaas.config"
            )
        self._token, self._valid_until = "", -math.inf

    async def token(self) -> str:
        """Return a valid token. Raises OSError."""
        if self._file is not None:
            read = partial(read_file, TOKEN_URL, str(self._file))
            try:
                return (await trio.to_thread.run_sync(read)).decode().strip()
            except (BadSettings, UnicodeDecodeError) as error:
                raise OSError(f"no token: {error}") from None
        if trio.current_time() >= self._valid_until:
            self._token, seconds = await self._request_token()
            self._valid_until = trio.current_time() + seconds * REUSE_FRACTION
        return self._token

    async def _request_token(self) -> tuple[str, float]:
        """Request a token; return it with its lifetime in seconds (RFC 6749, 4.4)."""
        fields = {"grant_type": "client_credentials"} | (
            {"scope": self._scope} if self._scope else {}
        )
        headers = {
            "Authorization": "Basic " + b64encode(f"{self._id}:{self._secret}".encode()).decode(),
            "Content-Type": "application/x-www-form-urlencoded",
            "Accept": "application/json",
        }
        from kbroker.runtime.http_client import (
            HTTP_OK,
            HttpError,
            fetch,
        )  # not needed for token files

        location = without_query(self._url)
        try:
            status, body = await fetch(
                self._url,
                seconds=FETCH_SECONDS,
                bytes_max=ANSWER_BYTES_MAX,
                trusted=self._trusted,
                method="POST",
                body=urlencode(fields).encode(),
                headers=headers,
            )
        except HttpError as error:
            raise OSError(f"no token from {location}: {error.message}") from None
        if status != HTTP_OK:
            raise OSError(
                f"no token from {location}: HTTP status {status}; check {CLIENT_ID} and {CLIENT_SECRET}"
            )
        try:
            answer = json.loads(body)
            return str(answer["access_token"]), float(answer.get("expires_in", 0))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise OSError(
                f"no token from {location}: its response has no valid access_token"
            ) from None
