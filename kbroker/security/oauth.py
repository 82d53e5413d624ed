"""OAUTHBEARER (RFC 7628, KIP-255): a token shows who a client is.

The client sends its token in one message. One that is not taken is answered with an error in JSON;
the client says that it has seen it (0x01), and then the login fails.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from .errors import LoginFailed, NotYet

if TYPE_CHECKING:
    from .tokens import Tokens

MESSAGE_BYTES_MAX = 40 * 1024
"""A token of the largest size, and room for extensions."""
INVALID_TOKEN = '{"status":"invalid_token"}'
"""All that a client is told (RFC 6750): why is in the log."""
SEEN = b"\x01"
_END = "\x01"
_FIELDS_MAX = 32
_KEY = re.compile(r"[A-Za-z]+")
_VALUE = re.compile(r"[\x21-\x7e \t\r\n]+")
_CREDENTIALS = re.compile(r"bearer +(?P<token>[-._~+/A-Za-z0-9]+=*)", re.IGNORECASE)


class OAuthServer:
    """One exchange with one client: `answer` its message. `tokens` is what the listener asks of it."""

    is_delegated = False

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._has_looked = False
        self._refusal = ""
        self.name: str | None = None
        """Who it is, once that is shown."""
        self.lifetime_seconds: float | None = None
        """How long that is so."""

    def answer(self, message: bytes) -> bytes:
        """The answer to the client's message. Raises LoginFailed, and NotYet at most once."""
        from .tokens import BadToken, UnknownKey

        if self._refusal:  # whatever the client says to it
            raise LoginFailed(self._refusal, told=INVALID_TOKEN)
        if len(message) > MESSAGE_BYTES_MAX or self.name is not None:
            raise LoginFailed("a message that is not expected")
        token, authorization = _parse(message)
        try:
            name, lifetime_seconds = self._tokens.check(token)
        except BadToken as error:
            if isinstance(error, UnknownKey) and not self._has_looked:
                self._has_looked = True
                raise NotYet(self._tokens.look_up) from None
            self._refusal = str(error)
            return INVALID_TOKEN.encode()
        if authorization not in ("", _escaped(name)):
            raise LoginFailed("nobody acts for somebody else")
        self.name, self.lifetime_seconds = name, lifetime_seconds
        return b""


def first_message(token: str, extensions: Mapping[str, str] | None = None) -> bytes:
    """The client's message."""
    fields = {"auth": f"Bearer {token}", **(extensions or {})}
    pairs = "".join(f"{key}={value}{_END}" for key, value in fields.items())
    return f"n,,{_END}{pairs}{_END}".encode()


def _parse(message: bytes) -> tuple[str, str]:
    """The token, and for whom the client wants to act. Raises LoginFailed."""
    wrong = LoginFailed("the message is not understood")
    try:
        header, *fields = message.decode().split(_END, _FIELDS_MAX)
    except UnicodeDecodeError:
        raise wrong from None
    binding, _, rest = header.partition(",")
    authorization, comma, nothing = rest.partition(",")
    if binding not in ("n", "y") or not comma or nothing or fields[-2:] != ["", ""]:
        raise wrong
    found: dict[str, str] = {}
    for field in fields[:-2]:
        key, _, value = field.partition("=")
        if not _KEY.fullmatch(key) or not _VALUE.fullmatch(value) or key in found:
            raise wrong
        found[key] = value
    credentials = _CREDENTIALS.fullmatch(found.get("auth", ""))
    if credentials is None or not (authorization == "" or authorization.startswith("a=")):
        raise wrong
    return credentials["token"], authorization.removeprefix("a=")


def _escaped(name: str) -> str:
    """As a name stands in a message (RFC 5801)."""
    return name.replace("=", "=3D").replace(",", "=2C")
