"""Where a client gets its bearer token: from a file, or from who issues tokens (KIP-768)."""

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
from kbroker.security.urls import file_of, place_of, trusted_by

TOKEN_URL = "sasl.oauthbearer.token.endpoint.url"
CLIENT_ID = "sasl.oauthbearer.client.credentials.client.id"
CLIENT_SECRET = "sasl.oauthbearer.client.credentials.client.secret"
SCOPE = "sasl.oauthbearer.scope"
SETTINGS = (TOKEN_URL, CLIENT_ID, CLIENT_SECRET, SCOPE)
FETCH_SECONDS = 10.0
ANSWER_BYTES_MAX = 128 * 1024
SHARE_OF_LIFE = 0.8
"""A token is used again for this part of the time that it is good, as by Java's client."""


class TokenSource:
    """Gives tokens by Kafka's client settings, and the options of ``sasl.jaas.config`` before KIP-1139.

    A token of a file is read each time, because somebody else puts a new one there. Raises BadSettings.
    """

    def __init__(self, settings: Mapping[str, str], module: LoginModule) -> None:
        def setting(name: str, option: str) -> str:
            return settings.get(name) or module.options.get(option, "")

        self._url = settings.get(TOKEN_URL, "")
        if not self._url:
            raise BadSettings(
                f"{TOKEN_URL} is missing: file:///PATH of a token, or https://HOST/PATH of who issues "
                "tokens"
            )
        self._file = file_of(TOKEN_URL, self._url)
        self._id, self._secret = (
            setting(CLIENT_ID, "clientId"),
            setting(CLIENT_SECRET, "clientSecret"),
        )
        self._scope = setting(SCOPE, "scope")
        self._trusted = None if self._file else trusted_by(module)
        if self._file is None and find_spec("h11") is None:
            raise BadSettings(f"{TOKEN_URL} by https needs more: pip install 'kbroker[oauth]'")
        if self._file is None and not (self._id and self._secret):
            raise BadSettings(
                f"{TOKEN_URL} needs {CLIENT_ID} and {CLIENT_SECRET}, or clientId and clientSecret in "
                "sasl.jaas.config"
            )
        self._token, self._good_until = "", -math.inf

    async def token(self) -> str:
        """A token that is good now. Raises OSError."""
        if self._file is not None:
            read = partial(read_file, TOKEN_URL, str(self._file))
            try:
                return (await trio.to_thread.run_sync(read)).decode().strip()
            except (BadSettings, UnicodeDecodeError) as error:
                raise OSError(f"no token: {error}") from None
        if trio.current_time() >= self._good_until:
            self._token, seconds = await self._issued()
            self._good_until = trio.current_time() + seconds * SHARE_OF_LIFE
        return self._token

    async def _issued(self) -> tuple[str, float]:
        """A new token, and how long it is good in seconds (RFC 6749, 4.4)."""
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
        )  # what a file does not need

        place = place_of(self._url)
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
            raise OSError(f"no token from {place}: {error.message}") from None
        if status != HTTP_OK:
            raise OSError(
                f"no token from {place}: HTTP status {status}; are {CLIENT_ID} and {CLIENT_SECRET} right?"
            )
        try:
            answer = json.loads(body)
            return str(answer["access_token"]), float(answer.get("expires_in", 0))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            raise OSError(f"no token from {place}: its answer has no access_token") from None
