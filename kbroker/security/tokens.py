"""Bearer tokens: JWTs (RFC 7519) that somebody else has signed, and whom they let in (KIP-768).

Nothing of a token is believed but what a key of the key set (JWKS, RFC 7517) has signed, and only keys
of two halves sign: who can check a token cannot make one. A key that a token brings or points at
(``jwk``, ``jku``, ``x5u``) is not looked at.
"""

from __future__ import annotations

import json
import math
import time
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .errors import BadSettings
from .jaas import LoginModule, Lookup
from .stores import read_file
from .urls import file_of, trusted_by

if TYPE_CHECKING:
    import ssl

try:
    import h11  # noqa: F401  # it fetches the key set
    from joserfc import jws
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey
except ModuleNotFoundError:
    raise BadSettings(
        "OAUTHBEARER needs more than the base install: pip install 'kbroker[oauth]'"
    ) from None

OAUTHBEARER: Final = "OAUTHBEARER"
TOKEN_BYTES_MAX = 32 * 1024
"""Much for a token: looking at one of these takes less than a millisecond."""
KEYS_BYTES_MAX = 256 * 1024
"""Of a whole key set, certificates included."""
NAME_LENGTH_MAX = 1000
RSA_BITS_MIN = 2048
JWKS_URL = "sasl.oauthbearer.jwks.endpoint.url"
ISSUER = "sasl.oauthbearer.expected.issuer"
AUDIENCE = "sasl.oauthbearer.expected.audience"
_SETTINGS = (
    JWKS_URL,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    AUDIENCE,
    ISSUER,
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
    "sasl.oauthbearer.jwt.validator.class",
)
_VALIDATORS = ("DefaultJwtValidator", "BrokerJwtValidator")
_VALIDATORS_PACKAGE = "org.apache.kafka.common.security.oauthbearer."

_KEY_TYPES = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), RSAKey.key_type),
    **dict.fromkeys(("ES256", "ES384", "ES512"), ECKey.key_type),
    **dict.fromkeys(("EdDSA", "Ed25519"), OKPKey.key_type),
}
"""The algorithms, and what kind of key each of them takes."""
_PUBLIC_PARTS: dict[str, tuple[type[RSAKey | ECKey | OKPKey], tuple[str, ...]]] = {
    RSAKey.key_type: (RSAKey, ("n", "e")),
    ECKey.key_type: (ECKey, ("crv", "x", "y")),
    OKPKey.key_type: (OKPKey, ("crv", "x")),
}
_KEY_FACTS = ("kty", "kid", "use", "alg", "key_ops")


class BadToken(Exception):
    """A token that lets nobody in. The text says why, and nothing of what is not signed."""


class UnknownKey(BadToken):
    """It names a key that the key set does not have; a newer set may."""


class Verified(NamedTuple):
    """Whom a token lets in, and how long it does."""

    name: str
    lifetime_seconds: float


class KeySet:
    """Keys by which tokens are checked, from a JWKS as text. Raises ValueError if it has none.

    What is no key for signatures is left out, and so are keys that are too weak.
    """

    def __init__(self, data: bytes) -> None:
        try:
            entries = [*json.loads(data)["keys"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ValueError("it is no JSON object with `keys` (RFC 7517)") from None
        found = [_key_of(each) for each in entries if isinstance(each, dict)]
        self._keys = {(each.kid, each.key_type): each for each in found if each is not None}
        if not self._keys:
            raise ValueError("it has no key of RSA, EC or OKP that checks signatures")

    def find(self, kid: str | None, key_type: str) -> RSAKey | ECKey | OKPKey | None:
        """The key of that name; of tokens that name none the only one of its type."""
        if kid is not None:
            return self._keys.get((kid, key_type))
        fitting = [each for each in self._keys.values() if each.key_type == key_type]
        return fitting[0] if len(fitting) == 1 else None


def _key_of(entry: dict[str, Any]) -> RSAKey | ECKey | OKPKey | None:
    """The public half of a key that checks signatures; None for any other entry."""
    kind = _PUBLIC_PARTS.get(str(entry.get("kty")))
    is_named = isinstance(entry.get("kid"), str | None)
    if kind is None or entry.get("use", "sig") != "sig" or not is_named:
        return None
    key_class, parts = kind
    facts = {name: entry[name] for name in (*parts, *_KEY_FACTS) if name in entry}
    try:
        if key_class is RSAKey and _bits(facts["n"]) < RSA_BITS_MIN:
            return None  # the library would warn of it, and take it
        key = key_class.import_key(facts)
        key.check_key_op("verify")
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return key


def _bits(number: str) -> int:
    """The length of a number of a key, which is in base64 (RFC 7518, 2)."""
    return int.from_bytes(_decoded(number)).bit_length()


def _decoded(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Tokens:
    """What a listener asks of tokens. `setting` finds its settings, `now` tells Unix time in seconds.

    Keys in a file are read at once, others are not there before somebody gives `keys` what is at
    `url`. Raises BadSettings, also when it is not said whose tokens are taken, and whom they are
    meant for: who takes all tokens lets everybody in who has one for something else.
    """

    def __init__(
        self, setting: Lookup, module: LoginModule, now: Callable[[], float] = time.time
    ) -> None:
        self._now = now
        self._issuer = setting(ISSUER, OAUTHBEARER)
        self._audiences = _items(setting(AUDIENCE, OAUTHBEARER))
        self._skew_seconds = int(setting("sasl.oauthbearer.clock.skew.seconds", OAUTHBEARER))
        self._scope_claim = setting("sasl.oauthbearer.scope.claim.name", OAUTHBEARER)
        self._name_claim = setting("sasl.oauthbearer.sub.claim.name", OAUTHBEARER)
        self.url = setting(JWKS_URL, OAUTHBEARER)
        """Where the keys are."""
        self.refresh_seconds = _seconds(setting, "refresh.ms")
        """How often they are fetched again."""
        self.retry_seconds = _seconds(setting, "retry.backoff.ms")
        self.retry_seconds_max = _seconds(setting, "retry.backoff.max.ms")
        for name, value in (
            (JWKS_URL, self.url),
            (ISSUER, self._issuer),
            (AUDIENCE, self._audiences),
        ):
            if not value:
                raise BadSettings(f"OAUTHBEARER without {name}: anybody's tokens would do; set it")
        _check_validator(setting("sasl.oauthbearer.jwt.validator.class", OAUTHBEARER))
        self.file = file_of(JWKS_URL, self.url)
        """The file of the keys, if they are in one."""
        self.trusted: ssl.SSLContext | None = None
        """Whose certificates are believed where the keys are fetched."""
        self.keys: KeySet | None = None
        self.look_up: Callable[[], Awaitable[None]] = _nothing_more
        """Wait some moments for newer keys, when one is asked for that is not there."""
        if self.file is None:
            self.trusted = trusted_by(module)
        else:
            self.read_file()

    def read_file(self) -> None:
        """Take the keys from their file. Raises BadSettings."""
        assert self.file is not None
        data = read_file(JWKS_URL, str(self.file))
        try:
            self.keys = KeySet(data)
        except ValueError as error:
            raise BadSettings(f"{JWKS_URL}: {self.file} is no key set: {error}") from None

    def check(self, token: str) -> Verified:
        """Whom a token lets in. Raises BadToken, UnknownKey."""
        if len(token) > TOKEN_BYTES_MAX:
            raise BadToken(f"the token is larger than {TOKEN_BYTES_MAX} bytes")
        claims = self._signed(token)
        if claims.get("iss") != self._issuer:
            raise BadToken("the token is of another issuer")
        audiences = claims.get("aud")
        meant = [audiences] if isinstance(audiences, str) else audiences
        if not isinstance(meant, list) or not any(
            isinstance(each, str) and each in self._audiences for each in meant
        ):
            raise BadToken("the token is meant for somebody else (aud)")
        lifetime_seconds = self._lifetime_seconds(claims)
        _check_scope(claims.get(self._scope_claim))
        name = claims.get(self._name_claim)
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise BadToken(f"the token has no name in {self._name_claim}")
        if len(name) > NAME_LENGTH_MAX:
            raise BadToken(f"the name in the token is longer than {NAME_LENGTH_MAX} characters")
        return Verified(name, lifetime_seconds)

    def _signed(self, token: str) -> dict[str, object]:
        """What a key of the set has signed."""
        header = _header_of(token)
        algorithm = header.get("alg")
        key_type = _KEY_TYPES.get(algorithm) if isinstance(algorithm, str) else None
        if key_type is None:
            raise BadToken("the token is not signed by an algorithm of " + ", ".join(_KEY_TYPES))
        kid = header.get("kid")
        if not isinstance(kid, str | None):
            raise BadToken("the token names its key by something else than text")
        key = None if self.keys is None else self.keys.find(kid, key_type)
        if key is None:
            raise UnknownKey("the token is signed by a key that the key set does not have")
        try:
            signed = jws.deserialize_compact(token, key, registry=_Algorithms())
            claims = json.loads(signed.payload)
        except (JoseError, ValueError, TypeError, RecursionError) as error:
            raise BadToken(f"the token is not signed as it says ({type(error).__name__})") from None
        if not isinstance(claims, dict):
            raise BadToken("the token has no claims")
        return claims

    def _lifetime_seconds(self, claims: dict[str, object]) -> float:
        """How long it is still good. Raises BadToken when it is not good now."""
        now, skew = self._now(), self._skew_seconds
        expires_at, issued_at = _time_in(claims, "exp"), _time_in(claims, "iat")
        if expires_at is None or issued_at is None:
            raise BadToken(
                "the token does not say until when it is good (exp), or since when (iat)"
            )
        if expires_at + skew <= now:
            raise BadToken("the token is not good any more (exp)")
        if max(issued_at, _time_in(claims, "nbf") or 0) - skew > now:
            raise BadToken("the token is not good yet (nbf, iat)")
        return max(expires_at - now, 0.0)


class _Algorithms(jws.JWSRegistry):
    """Those of ours, and sizes that fit `TOKEN_BYTES_MAX`."""

    max_header_length = TOKEN_BYTES_MAX
    max_payload_length = TOKEN_BYTES_MAX

    def __init__(self) -> None:
        super().__init__(algorithms=[*_KEY_TYPES], strict_check_header=False)

    def get_alg(self, name: str) -> Any:
        """As there, without the warning that EdDSA has another name now (RFC 9864)."""
        return self.algorithms[name]


def asked(setting: Lookup) -> tuple[str, ...]:
    """What the settings of tokens say; the same where nothing is to change."""
    return tuple(setting(name, OAUTHBEARER) for name in _SETTINGS)


def _header_of(token: str) -> dict[str, object]:
    text, _, rest = token.partition(".")
    if not rest:
        raise BadToken("the token is no JWT")
    try:
        header = json.loads(_decoded(text))
    except (ValueError, RecursionError):
        raise BadToken("the token's header is not understood") from None
    # Extensions that have to be understood (RFC 7515, 4.1.11): there are none here.
    if not isinstance(header, dict) or "crit" in header:
        raise BadToken("the token's header is not understood")
    return header


def _time_in(claims: dict[str, object], name: str) -> float | None:
    """Seconds of Unix time; None when they are not there. Raises BadToken for what is no time."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadToken(f"the token has {name} that is no number")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise BadToken(f"the token has {name} that is no time")
    return seconds


def _check_scope(scope: object) -> None:
    scopes = [scope] if isinstance(scope, str) else scope
    if scopes is not None and not (
        isinstance(scopes, list) and all(isinstance(each, str) for each in scopes)
    ):
        raise BadToken("the token's scope is neither a text nor a list of texts")


def _check_validator(name: str) -> None:
    known = [_VALIDATORS_PACKAGE + each for each in _VALIDATORS]
    if name and name not in known:
        raise BadSettings(
            f"sasl.oauthbearer.jwt.validator.class names {name}, which is no part of kbroker: leave "
            f"it out, or name {known[0]}"
        )


def _seconds(setting: Lookup, name: str) -> float:
    return int(setting(f"sasl.oauthbearer.jwks.endpoint.{name}", OAUTHBEARER)) / 1000


def _items(text: str) -> Collection[str]:
    return frozenset(each.strip() for each in text.split(",") if each.strip())


async def _nothing_more() -> None:
    """Nobody fetches keys."""
