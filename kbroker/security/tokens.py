"""Validation of OAUTHBEARER tokens: JWTs (RFC 7519) that an external issuer signs (KIP-768).

Only claims that a key of the configured key set (JWKS, RFC 7517) has signed are trusted. Only
asymmetric algorithms are allowed, so a party that can verify tokens cannot create them. Keys that a
token contains or references (``jwk``, ``jku``, ``x5u``) are ignored.
"""

from __future__ import annotations

import json
import logging
import math
import time
from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable, Collection
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .errors import BadSettings
from .jaas import LoginModule, Lookup
from .stores import read_file
from .urls import client_context_of, file_of

if TYPE_CHECKING:
    import ssl

try:
    import h11  # noqa: F401  # needed to fetch the key set
    from joserfc import jws
    from joserfc.errors import JoseError
    from joserfc.jwk import ECKey, OKPKey, RSAKey
except ModuleNotFoundError:
    raise BadSettings(
        "OAUTHBEARER needs more than the base install: pip install 'kbroker[oauth]'"
    ) from None

logger = logging.getLogger(__name__)

OAUTHBEARER: Final = "OAUTHBEARER"
# Maximum size of a token in bytes; validation takes less than a millisecond.
TOKEN_BYTES_MAX = 32 * 1024
# Maximum size of a key set in bytes, including certificates.
KEYS_BYTES_MAX = 256 * 1024
NAME_LENGTH_MAX = 1000
RSA_BITS_MIN = 2048
JWKS_URL = "sasl.oauthbearer.jwks.endpoint.url"
ISSUER = "sasl.oauthbearer.expected.issuer"
AUDIENCE = "sasl.oauthbearer.expected.audience"
ALLOW_UNVERIFIED_ISSUER = "sasl.oauthbearer.allow.unverified.issuer"
ALLOW_UNVERIFIED_AUDIENCE = "sasl.oauthbearer.allow.unverified.audience"
_SETTINGS = (
    JWKS_URL,
    "sasl.oauthbearer.jwks.endpoint.refresh.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.ms",
    "sasl.oauthbearer.jwks.endpoint.retry.backoff.max.ms",
    AUDIENCE,
    ISSUER,
    ALLOW_UNVERIFIED_AUDIENCE,
    ALLOW_UNVERIFIED_ISSUER,
    "sasl.oauthbearer.clock.skew.seconds",
    "sasl.oauthbearer.scope.claim.name",
    "sasl.oauthbearer.sub.claim.name",
    "sasl.oauthbearer.jwt.validator.class",
)
_VALIDATORS = ("DefaultJwtValidator", "BrokerJwtValidator")
_VALIDATORS_PACKAGE = "org.apache.kafka.common.security.oauthbearer."

# Key type of each supported algorithm.
_KEY_TYPES = {
    **dict.fromkeys(("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"), RSAKey.key_type),
    **dict.fromkeys(("ES256", "ES384", "ES512"), ECKey.key_type),
    **dict.fromkeys(("EdDSA", "Ed25519"), OKPKey.key_type),
}
_PUBLIC_PARTS: dict[str, tuple[type[RSAKey | ECKey | OKPKey], tuple[str, ...]]] = {
    RSAKey.key_type: (RSAKey, ("n", "e")),
    ECKey.key_type: (ECKey, ("crv", "x", "y")),
    OKPKey.key_type: (OKPKey, ("crv", "x")),
}
_KEY_FIELDS = ("kty", "kid", "use", "alg", "key_ops")


class BadToken(Exception):
    """An invalid token. The message gives the reason and quotes nothing unsigned."""


class UnknownKey(BadToken):
    """A token whose key is not in the key set; a newer key set may contain it."""


class Verified(NamedTuple):
    """The principal name of a valid token and its remaining lifetime in seconds."""

    name: str
    lifetime_seconds: float


class KeySet:
    """The keys of a JWKS that can verify signatures.

    Other entries and weak keys are ignored.

    Raises:
        ValueError: The JWKS cannot be parsed or contains no usable key.
    """

    def __init__(self, data: bytes) -> None:
        try:
            entries = [*json.loads(data)["keys"]]
        except (ValueError, TypeError, KeyError, RecursionError):
            raise ValueError("not a JSON object with `keys` (RFC 7517)") from None
        found = [_parse_key(each) for each in entries if isinstance(each, dict)]
        self._keys = {(each.kid, each.key_type): each for each in found if each is not None}
        if not self._keys:
            raise ValueError("no RSA, EC or OKP key that verifies signatures")

    def find(self, kid: str | None, key_type: str) -> RSAKey | ECKey | OKPKey | None:
        """Return the key with an ID; without an ID, the only key of the type."""
        if kid is not None:
            return self._keys.get((kid, key_type))
        candidates = [each for each in self._keys.values() if each.key_type == key_type]
        return candidates[0] if len(candidates) == 1 else None


def _parse_key(entry: dict[str, Any]) -> RSAKey | ECKey | OKPKey | None:
    """Return the public key of an entry that verifies signatures; None for other entries."""
    kind = _PUBLIC_PARTS.get(str(entry.get("kty")))
    is_named = isinstance(entry.get("kid"), str | None)
    if kind is None or entry.get("use", "sig") != "sig" or not is_named:
        return None
    key_class, parts = kind
    fields = {name: entry[name] for name in (*parts, *_KEY_FIELDS) if name in entry}
    try:
        if key_class is RSAKey and _bits(fields["n"]) < RSA_BITS_MIN:
            return None  # the library would only warn and accept the key
        key = key_class.import_key(fields)
        key.check_key_op("verify")
    except (JoseError, ValueError, TypeError, KeyError):
        return None
    return key


def _bits(number: str) -> int:
    """Return the bit length of a base64 integer of a key (RFC 7518, 2)."""
    return int.from_bytes(_decode_base64url(number)).bit_length()


def _decode_base64url(text: str) -> bytes:
    return urlsafe_b64decode(text + "=" * (-len(text) % 4))


class Tokens:
    """The token validation of a listener.

    Keys in a file are read immediately. Other keys are missing until the caller sets `keys` to the
    key set at `url`.

    Args:
        setting: Returns the settings of the listener.
        module: Login module with the TLS options for fetching keys.
        now: Returns Unix time in seconds.

    Attributes:
        url: URL of the key set.
        refresh_seconds: Interval between fetches of the key set.
        retry_seconds: First pause after a failed fetch.
        retry_seconds_max: Longest pause after a failed fetch.
        file: File of the key set, if the URL names one.
        trusted: TLS context for fetching keys.
        keys: The current key set.
        look_up: Waits a short time for a newer key set after an unknown key.

    Raises:
        BadSettings: A setting is invalid, or the issuer or the audience is missing although no
            setting permits that: tokens issued for other services would be accepted.
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
        self.refresh_seconds = _seconds(setting, "refresh.ms")
        self.retry_seconds = _seconds(setting, "retry.backoff.ms")
        self.retry_seconds_max = _seconds(setting, "retry.backoff.max.ms")
        if not self.url:
            raise BadSettings(f"OAUTHBEARER without {JWKS_URL} would accept any token; set it")
        if not self._issuer:
            _check_permission(setting, ISSUER, ALLOW_UNVERIFIED_ISSUER)
        if not self._audiences:
            _check_permission(setting, AUDIENCE, ALLOW_UNVERIFIED_AUDIENCE)
        _check_validator(setting("sasl.oauthbearer.jwt.validator.class", OAUTHBEARER))
        self.file = file_of(JWKS_URL, self.url)
        self.trusted: ssl.SSLContext | None = None
        self.keys: KeySet | None = None
        self.look_up: Callable[[], Awaitable[None]] = _no_lookup
        if self.file is None:
            self.trusted = client_context_of(module)
        else:
            self.read_file()

    def read_file(self) -> None:
        """Read the key set from its file. Raises BadSettings."""
        assert self.file is not None
        data = read_file(JWKS_URL, str(self.file))
        try:
            self.keys = KeySet(data)
        except ValueError as error:
            raise BadSettings(f"{JWKS_URL}: {self.file} is not a key set: {error}") from None

    def check(self, token: str) -> Verified:
        """Validate a token.

        Raises:
            UnknownKey: The key set does not contain the token's key.
            BadToken: The token is invalid for another reason.
        """
        if len(token) > TOKEN_BYTES_MAX:
            raise BadToken(f"the token is larger than {TOKEN_BYTES_MAX} bytes")
        claims = self._verified_claims(token)
        if self._issuer and claims.get("iss") != self._issuer:
            raise BadToken("the token is from another issuer (iss)")
        if self._audiences:
            self._check_audience(claims.get("aud"))
        lifetime_seconds = self._lifetime_seconds(claims)
        _check_scope(claims.get(self._scope_claim))
        name = claims.get(self._name_claim)
        if not isinstance(name, str) or not name.strip() or not name.isprintable():
            raise BadToken(f"the token has no name in {self._name_claim}")
        if len(name) > NAME_LENGTH_MAX:
            raise BadToken(f"the name in the token is longer than {NAME_LENGTH_MAX} characters")
        return Verified(name, lifetime_seconds)

    def _check_audience(self, claim: object) -> None:
        """Raise BadToken unless the claim contains an expected audience."""
        audiences = [claim] if isinstance(claim, str) else claim
        if not isinstance(audiences, list) or not any(
            isinstance(each, str) and each in self._audiences for each in audiences
        ):
            raise BadToken("the token is for another audience (aud)")

    def _verified_claims(self, token: str) -> dict[str, object]:
        """Verify the signature and return the claims."""
        header = _parse_header(token)
        algorithm = header.get("alg")
        key_type = _KEY_TYPES.get(algorithm) if isinstance(algorithm, str) else None
        if key_type is None:
            raise BadToken("the token is not signed by an algorithm of " + ", ".join(_KEY_TYPES))
        kid = header.get("kid")
        if not isinstance(kid, str | None):
            raise BadToken("the key ID of the token is not a string (kid)")
        key = None if self.keys is None else self.keys.find(kid, key_type)
        if key is None:
            raise UnknownKey("the token is signed by a key that is not in the key set")
        try:
            signed = jws.deserialize_compact(token, key, registry=_Algorithms())
            claims = json.loads(signed.payload)
        except (JoseError, ValueError, TypeError, RecursionError) as error:
            raise BadToken(
                f"the token is malformed or its signature is invalid ({type(error).__name__})"
            ) from None
        if not isinstance(claims, dict):
            raise BadToken("the claims of the token are not a JSON object")
        return claims

    def _lifetime_seconds(self, claims: dict[str, object]) -> float:
        """Return the remaining lifetime. Raises BadToken if the token is not valid now."""
        now, skew = self._now(), self._skew_seconds
        expires_at, issued_at = _time_claim(claims, "exp"), _time_claim(claims, "iat")
        if expires_at is None or issued_at is None:
            raise BadToken("the token lacks the exp or iat claim")
        if expires_at + skew <= now:
            raise BadToken("the token has expired (exp)")
        if max(issued_at, _time_claim(claims, "nbf") or 0) - skew > now:
            raise BadToken("the token is not valid yet (nbf, iat)")
        return max(expires_at - now, 0.0)


class _Algorithms(jws.JWSRegistry):
    """The supported algorithms, with size limits for `TOKEN_BYTES_MAX`."""

    max_header_length = TOKEN_BYTES_MAX
    max_payload_length = TOKEN_BYTES_MAX

    def __init__(self) -> None:
        super().__init__(algorithms=[*_KEY_TYPES], strict_check_header=False)

    def get_alg(self, name: str) -> Any:
        """Return an algorithm, without the deprecation warning for EdDSA (RFC 9864)."""
        return self.algorithms[name]


def settings_snapshot(setting: Lookup) -> tuple[str, ...]:
    """Return the values of all token settings, to detect changes."""
    return tuple(setting(name, OAUTHBEARER) for name in _SETTINGS)


def _parse_header(token: str) -> dict[str, object]:
    text, _, rest = token.partition(".")
    if not rest:
        raise BadToken("the token is not a JWT")
    try:
        header = json.loads(_decode_base64url(text))
    except (ValueError, RecursionError):
        raise BadToken("the header of the token is malformed") from None
    # No critical extensions are supported (RFC 7515, 4.1.11).
    if not isinstance(header, dict) or "crit" in header:
        raise BadToken("the header of the token is malformed")
    return header


def _time_claim(claims: dict[str, object], name: str) -> float | None:
    """Return a time claim in Unix seconds; None if it is missing. Raises BadToken."""
    value = claims.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise BadToken(f"the token has {name} that is not a number")
    try:
        seconds = float(value)
    except OverflowError:
        seconds = math.inf
    if not math.isfinite(seconds):
        raise BadToken(f"the token has {name} that is not a time")
    return seconds


def _check_scope(scope: object) -> None:
    scopes = [scope] if isinstance(scope, str) else scope
    if scopes is not None and not (
        isinstance(scopes, list) and all(isinstance(each, str) for each in scopes)
    ):
        raise BadToken("the scope of the token is neither a string nor a list of strings")


def _check_permission(setting: Lookup, name: str, allowing: str) -> None:
    """Warn that a claim of tokens is not verified.

    Args:
        setting: Returns the settings of the listener.
        name: The unset setting with the expected value of the claim.
        allowing: The setting that permits it to be unset.

    Raises:
        BadSettings: The setting `allowing` is false.
    """
    if setting(allowing, OAUTHBEARER) != "true":
        raise BadSettings(
            f"OAUTHBEARER without {name} would accept any token; set it, or set {allowing}=true"
        )
    logger.warning(
        "OAUTHBEARER may accept tokens that were issued for other services: %s is unset and %s is true",
        name,
        allowing,
    )


def _check_validator(name: str) -> None:
    known = [_VALIDATORS_PACKAGE + each for each in _VALIDATORS]
    if name and name not in known:
        raise BadSettings(
            f"sasl.oauthbearer.jwt.validator.class: {name} is not part of kbroker; remove the "
            f"setting or use {known[0]}"
        )


def _seconds(setting: Lookup, name: str) -> float:
    return int(setting(f"sasl.oauthbearer.jwks.endpoint.{name}", OAUTHBEARER)) / 1000


def _items(text: str) -> Collection[str]:
    return frozenset(each.strip() for each in text.split(",") if each.strip())


async def _no_lookup() -> None:
    """Do nothing: no task fetches keys."""
