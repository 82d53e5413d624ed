"""Validation of OAUTHBEARER tokens."""

from __future__ import annotations

import json
import random
from base64 import urlsafe_b64encode
from pathlib import Path
from typing import Any

import pytest
from joserfc.jwk import OctKey, RSAKey

from kbroker.config import BrokerConfig
from kbroker.security.errors import AuthenticationError, BadSettings, ResponsePending
from kbroker.security.jaas import LoginModule
from kbroker.security.oauth import INVALID_TOKEN, SEEN, OAuthServer, first_message
from kbroker.security.tokens import (
    NAME_LENGTH_MAX,
    TOKEN_BYTES_MAX,
    BadToken,
    KeySet,
    Tokens,
    UnknownKey,
)
from kbroker.security.users import Users

from .issuers import AUDIENCE, ISSUER, NOW, claims_for, key_for, key_set, signed

ALGORITHMS = (
    *("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    *("ES256", "ES384", "ES512", "EdDSA", "Ed25519"),
)
PREFIX = "sasl.oauthbearer"
MODULE = LoginModule("OAuthBearerLoginModule", {})


def settings_for(file: Path, **more: str) -> dict[str, str]:
    return {
        "sasl.enabled.mechanisms": "OAUTHBEARER",
        f"{PREFIX}.jwks.endpoint.url": file.as_uri(),
        f"{PREFIX}.expected.issuer": ISSUER,
        f"{PREFIX}.expected.audience": f"other,{AUDIENCE}",
        **more,
    }


def lookup(settings: dict[str, str]) -> Any:
    config = BrokerConfig.load(options=[f"{name}={text}" for name, text in settings.items()])
    return config.lookup_for_listener("X")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "keys of tokens.json"
    path.write_bytes(key_set(key_for("ES256")))
    return path


@pytest.fixture
def tokens(file: Path) -> Tokens:
    return Tokens(lookup(settings_for(file)), MODULE, lambda: NOW)


def sign_with_es256(claims: Any, header: dict[str, Any] | None = None) -> str:
    return signed(claims, key_for("ES256"), "ES256", header)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_valid_token_is_accepted(tokens: Tokens, algorithm: str) -> None:
    key = key_for(algorithm)
    tokens.keys = KeySet(key_set(key_for("ES256", "other"), key))
    assert tokens.check(signed(claims_for("alice"), key, algorithm)) == ("alice", 300)


def test_multiple_audiences_and_extra_claims_are_accepted(tokens: Tokens) -> None:
    claims = claims_for(aud=["x", AUDIENCE], scope=["a", "b"], nbf=NOW, groups=["g"] * 100)
    assert tokens.check(
        sign_with_es256(claims, {"x5t": "x", "nonce": "y", "x5c": ["z" * 1000]})
    ).name


def test_clock_skew_is_tolerated(tokens: Tokens) -> None:
    assert tokens.check(sign_with_es256(claims_for(exp=NOW - 29))) == ("alice", 0)
    assert tokens.check(sign_with_es256(claims_for(iat=NOW + 30, nbf=NOW + 30))) == ("alice", 300)


def test_configured_claim_gives_name(file: Path) -> None:
    settings = settings_for(file) | {f"{PREFIX}.sub.claim.name": "client_id"}
    tokens = Tokens(lookup(settings), MODULE, lambda: NOW)
    assert tokens.check(sign_with_es256(claims_for(client_id="app"))).name == "app"
    with pytest.raises(BadToken, match="no name in client_id"):
        tokens.check(sign_with_es256(claims_for()))


@pytest.mark.parametrize(
    ("claims", "message"),
    [
        (claims_for(iss="https://issuer.test/"), "from another issuer"),
        (claims_for(iss=None), "from another issuer"),
        (claims_for(aud="kafk"), "another audience"),
        (claims_for(aud=["x", 1, None]), "another audience"),
        (claims_for(aud=None), "another audience"),
        (claims_for(aud={AUDIENCE: 1}), "another audience"),
        (claims_for(exp=NOW - 30), "has expired"),
        (claims_for(exp=None), "lacks the exp or iat claim"),
        (claims_for(exp="2100-01-01"), "exp that is not a number"),
        (claims_for(exp=True), "exp that is not a number"),
        (claims_for(exp=float("inf")), "exp that is not a time"),
        (claims_for(exp=float("nan")), "exp that is not a time"),
        (claims_for(exp=10**400), "exp that is not a time"),
        (claims_for(nbf=NOW + 31), "not valid yet"),
        (claims_for(iat=NOW + 31), "not valid yet"),
        (claims_for(iat=None), "lacks the exp or iat claim"),
        (claims_for(nbf=[]), "nbf that is not a number"),
        (claims_for(sub=None), "no name in sub"),
        (claims_for(sub="  "), "no name in sub"),
        (claims_for(sub=7), "no name in sub"),
        (claims_for(sub="a\nb"), "no name in sub"),
        (claims_for(sub="a" * (NAME_LENGTH_MAX + 1)), "longer than"),
        (claims_for(scope={"a": 1}), "scope"),
        ([claims_for()], "the claims of the token are not a JSON object"),
        ("[" * 5000, "malformed or its signature is invalid"),
        ("no JSON", "malformed or its signature is invalid"),
    ],
)
def test_invalid_claims_are_rejected(tokens: Tokens, claims: Any, message: str) -> None:
    with pytest.raises(BadToken, match=message):
        tokens.check(sign_with_es256(claims))


@pytest.mark.parametrize(
    ("claim", "expected", "foreign"),
    [
        ("issuer", "expected.issuer", {"iss": "https://other.test"}),
        ("issuer", "expected.issuer", {"iss": None}),
        ("audience", "expected.audience", {"aud": "other"}),
        ("audience", "expected.audience", {"aud": None}),
    ],
)
def test_unverified_claim_is_accepted_only_without_expected_value(
    file: Path,
    claim: str,
    expected: str,
    foreign: dict[str, Any],
    caplog: pytest.LogCaptureFixture,
) -> None:
    token = sign_with_es256(claims_for(**foreign))
    allowed = settings_for(file) | {
        f"{PREFIX}.expected.audience": AUDIENCE,
        f"{PREFIX}.allow.unverified.{claim}": "true",
    }
    with pytest.raises(BadToken, match=f"another {claim}"):
        Tokens(lookup(allowed), MODULE, lambda: NOW).check(token)
    assert not caplog.records
    without = allowed | {f"{PREFIX}.{expected}": ""}
    assert Tokens(lookup(without), MODULE, lambda: NOW).check(token).name == "alice"
    assert f"{PREFIX}.{expected} is unset" in caplog.text
    refused = without | {f"{PREFIX}.allow.unverified.{claim}": "false"}
    with pytest.raises(BadSettings, match=rf"or set {PREFIX}\.allow\.unverified\.{claim}=true"):
        Tokens(lookup(refused), MODULE, lambda: NOW)


def test_unverified_claim_can_be_permitted_for_a_single_listener(file: Path) -> None:
    settings = settings_for(file) | {
        f"{PREFIX}.expected.issuer": "",
        f"listener.name.x.oauthbearer.{PREFIX}.allow.unverified.issuer": "true",
    }
    tokens = Tokens(lookup(settings), MODULE, lambda: NOW)
    assert tokens.check(sign_with_es256(claims_for(iss="https://other.test"))).name == "alice"


def encoded(text: str) -> str:
    return urlsafe_b64encode(text.encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    "header",
    [
        '{"alg":"none"}',
        '{"alg":"None","kid":"one"}',
        '{"alg":["ES256"],"kid":"one"}',
        '{"alg":"ES256","kid":["one"]}',
        '{"alg":"ES256","kid":"one","crit":["b64"],"b64":false}',
        '{"alg":"dir","enc":"A256GCM"}',
        '"alg"',
        "7",
        "{}",
        "",
        "[" * 20_000,
    ],
)
def test_invalid_headers_are_rejected(tokens: Tokens, header: str) -> None:
    body = encoded(json.dumps(claims_for()))
    for token in (f"{encoded(header)}.{body}.", f"{encoded(header)}.{body}.AAAA"):
        with pytest.raises(BadToken):
            tokens.check(token)


def test_public_key_is_not_accepted_as_hmac_secret(tokens: Tokens) -> None:
    """A MAC with the public key must not count as a signature (CVE-2015-9235)."""
    key = key_for("RS256")
    assert isinstance(key, RSAKey)
    tokens.keys = KeySet(key_set(key))
    secrets = [key.as_pem(private=False), key_set(key), json.dumps(key.as_dict()).encode()]
    for secret in secrets:
        for algorithm in ("HS256", "HS384", "HS512"):
            forged = OctKey.import_key(secret.replace(b"-----BEGIN", b"BEGIN"), {"kid": "one"})
            with pytest.raises(BadToken, match="not signed by an algorithm of"):
                tokens.check(signed(claims_for(), forged, algorithm))


def test_keys_in_token_header_are_ignored(tokens: Tokens) -> None:
    own = key_for("ES256", "own")
    shown = own.as_dict(private=False)
    for header in (
        {"jwk": shown},
        {"jwk": shown, "kid": "one"},
        {"jku": "https://mine.test/keys", "kid": "one"},
        {"x5u": "https://mine.test/cert", "kid": None},
    ):
        with pytest.raises(BadToken):
            tokens.check(signed(claims_for(), own, "ES256", header))


def test_unusable_keys_are_rejected(tokens: Tokens) -> None:
    key = key_for("RS256")
    half = str(key.as_dict(private=False)["n"])[:170]
    assert tokens.keys is not None
    for data in (
        key_set(key, use="enc"),
        key_set(key, key_ops=["encrypt"]),
        key_set(key, n=half + "A"),  # 1024 bits
        key_set(key, n=half + "E"),
        b'{"keys":[{"kty":"oct","k":"c2VjcmV0","kid":"one"},7,{"kty":["RSA"]}]}',
        key_set(key, kid=["one"]),
        key_set(key, n=7),
        key_set(key, e="!"),
        b'{"keys":[]}',
        b'{"keys":7}',
        b"[]",
        b"[" * 100_000,
        b"",
    ):
        with pytest.raises(ValueError, match=r"not a JSON object|no RSA, EC or OKP key"):
            KeySet(data)
    tokens.keys = KeySet(key_set(key, alg="RS512"))
    with pytest.raises(BadToken, match="malformed or its signature is invalid"):
        tokens.check(signed(claims_for(), key, "RS256"))


def test_token_without_key_id_uses_only_matching_key(tokens: Tokens) -> None:
    token = sign_with_es256(claims_for(), {"kid": None})
    assert tokens.check(token).name == "alice"
    tokens.keys = KeySet(key_set(key_for("ES256"), key_for("ES256", "other")))
    with pytest.raises(UnknownKey):
        tokens.check(token)


def test_altered_tokens_are_rejected(tokens: Tokens) -> None:
    token = sign_with_es256(claims_for())
    head, body, signature = token.split(".")
    other = sign_with_es256(claims_for("bob")).split(".")
    for altered in (
        f"{head}.{other[1]}.{signature}",
        f"{head}.{body}.{other[2]}",
        f"{head}.{body}.",
        f"{head}.{body}",
        f"{head}.{body}.{signature}.",
        f"{head}..{signature}",
        f"{head}.{body}.{signature}=",
        "",
        ".",
        "..",
    ):
        with pytest.raises(BadToken):
            tokens.check(altered)
    for at in range(0, len(token), 7):
        if token[at] == ".":
            continue
        with pytest.raises(BadToken):
            tokens.check(token[:at] + ("A" if token[at] != "A" else "B") + token[at + 1 :])


def test_too_large_token_is_rejected(tokens: Tokens) -> None:
    with pytest.raises(BadToken, match="larger than"):
        tokens.check(sign_with_es256(claims_for(more="x" * TOKEN_BYTES_MAX)))
    assert tokens.check(sign_with_es256(claims_for(more="x" * (TOKEN_BYTES_MAX // 2)))).name


# -- the exchange


def test_exchange_authenticates_once(tokens: Tokens) -> None:
    server = OAuthServer(tokens)
    assert (
        server.answer(first_message(sign_with_es256(claims_for("a,b=c")), {"logicalCluster": "x"}))
        == b""
    )
    assert (server.name, server.lifetime_seconds) == ("a,b=c", 300)
    with pytest.raises(AuthenticationError):
        server.answer(first_message(sign_with_es256(claims_for())))


def test_failure_is_reported_before_exchange_ends(tokens: Tokens) -> None:
    server = OAuthServer(tokens)
    assert (
        server.answer(first_message(sign_with_es256(claims_for(exp=1)))) == INVALID_TOKEN.encode()
    )
    assert server.name is None
    with pytest.raises(AuthenticationError, match="has expired") as caught:
        server.answer(SEEN)
    assert caught.value.client_message == INVALID_TOKEN


def test_valid_token_after_invalid_token_is_rejected(tokens: Tokens) -> None:
    server = OAuthServer(tokens)
    server.answer(first_message(sign_with_es256(claims_for(exp=1))))
    with pytest.raises(AuthenticationError):
        server.answer(first_message(sign_with_es256(claims_for())))
    assert server.name is None


async def test_unknown_key_is_looked_up_once(tokens: Tokens) -> None:
    server = OAuthServer(tokens)
    message = first_message(signed(claims_for(), key_for("ES256", "new"), "ES256"))
    with pytest.raises(ResponsePending) as caught:
        server.answer(message)
    await caught.value.until()
    assert server.answer(message) == INVALID_TOKEN.encode()
    with pytest.raises(ResponsePending):
        OAuthServer(tokens).answer(message)
    tokens.keys = KeySet(key_set(key_for("ES256", "new")))
    assert OAuthServer(tokens).answer(message) == b""


@pytest.mark.parametrize(
    ("before", "after", "ok"),
    [
        ("n,,", "", True),
        ("y,,", "", True),
        ("n,a=alice,", "", True),
        ("n,,", "port=9092\x01host=h\x01", True),
        ("n,a=bob,", "", False),
        ("n,b=alice,", "", False),
        ("p=tls-unique,,", "", False),
        ("n,", "", False),
        ("n,,,", "", False),
        ("", "", False),
        ("n,,", "auth=x\x01", False),
        ("n,,", "p\x00=x\x01", False),
        ("n,,", "port=\x01", False),
        ("n,,", "x=y\x01" * 40, False),
    ],
)
def test_message_format_is_validated(tokens: Tokens, before: str, after: str, ok: bool) -> None:
    server = OAuthServer(tokens)
    message = f"{before}\x01auth=bEaReR  {sign_with_es256(claims_for())}\x01{after}\x01".encode()
    if ok:
        assert server.answer(message) == b""
        assert server.name == "alice"
    else:
        with pytest.raises(AuthenticationError):
            server.answer(message)
        assert server.name is None


@pytest.mark.slow
def test_mutated_messages_never_authenticate(tokens: Tokens) -> None:
    chance = random.Random(7)
    good = first_message(sign_with_es256(claims_for()))
    refused = 0
    for _ in range(20_000):
        message = bytearray(good)
        for _ in range(chance.randint(1, 6)):
            match chance.randrange(4):
                case 0:
                    message[chance.randrange(len(message))] = chance.randrange(256)
                case 1:
                    at = chance.randrange(len(message))
                    del message[at : at + chance.randrange(9)]
                case 2:
                    at = chance.randrange(len(message))
                    message[at:at] = chance.randbytes(chance.randrange(9))
                case _:
                    at = chance.randrange(len(message) - 9)
                    message[at : at + 8] = message[:8]
        server = OAuthServer(tokens)
        try:
            response = server.answer(bytes(message))
        except (AuthenticationError, ResponsePending):
            refused += 1
        else:
            refused += response == INVALID_TOKEN.encode()
            # Mutations outside of the token may be harmless.
            assert server.name is None or good[20:-9] in message
    assert refused > 15_000


@pytest.mark.slow
def test_mutated_headers_and_claims_raise_only_bad_token(tokens: Tokens) -> None:
    """The claims are signed after the mutation, so that they are parsed."""
    chance = random.Random(8)
    header = json.dumps({"alg": "ES256", "kid": "one", "typ": "JWT"})
    body = json.dumps(claims_for())
    fine = 0
    for number in range(4_000):
        text = bytearray((body if number % 2 else header).encode())
        for _ in range(chance.randint(1, 4)):
            text[chance.randrange(len(text))] = chance.choice(b'{}[]",:0123456789.eE-\\ua\xff')
        changed = text.decode(errors="replace")
        token = (
            sign_with_es256(changed)
            if number % 2
            else f"{encoded(changed)}.{encoded(body)}.{encoded('x')}"
        )
        try:
            fine += bool(tokens.check(token).name) and number % 2
        except BadToken:
            continue
    assert fine < 2000


# -- settings


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({f"{PREFIX}.jwks.endpoint.url": ""}, "without sasl.oauthbearer.jwks.endpoint.url"),
        ({f"{PREFIX}.expected.issuer": ""}, "without sasl.oauthbearer.expected.issuer"),
        ({f"{PREFIX}.expected.audience": ""}, "without sasl.oauthbearer.expected.audience"),
        ({f"{PREFIX}.jwks.endpoint.url": "http://h/k"}, "neither https://HOST/PATH nor file:"),
        ({f"{PREFIX}.jwks.endpoint.url": "https:///k"}, "neither https://HOST/PATH nor file:"),
        (
            {f"{PREFIX}.jwks.endpoint.url": "https://me:pw@h/k"},
            "neither https://HOST/PATH nor file:",
        ),
        ({f"{PREFIX}.jwks.endpoint.url": "https://h/a b"}, "neither https://HOST/PATH nor file:"),
        ({f"{PREFIX}.jwks.endpoint.url": "https://h:x/k"}, "is not a URL"),
        ({f"{PREFIX}.jwks.endpoint.url": "file:///nowhere/k"}, "cannot be read"),
        ({f"{PREFIX}.jwks.endpoint.url": "file:///dev/zero"}, "is not a regular file"),
        ({f"{PREFIX}.jwt.validator.class": "com.mine.V"}, "class: com.mine.V is not part of"),
        (
            {"sasl.server.callback.handler.class": "com.mine.H"},
            "class of OAUTHBEARER: com.mine",
        ),
        (
            {
                "sasl.jaas.config": 'OAuthBearerLoginModule required unsecuredLoginStringClaim_sub="a";'
            },
            "unsecured tokens are not supported",
        ),
        (
            {
                "sasl.enabled.mechanisms": "PLAIN",
                "sasl.server.callback.handler.class": "com.mine.PlainHandler",
            },
            "class of PLAIN: com.mine.PlainHandler is not part of",
        ),
    ],
)
def test_invalid_token_settings_are_rejected(
    file: Path, change: dict[str, str], message: str
) -> None:
    with pytest.raises(BadSettings, match=message):
        Users(lookup(settings_for(file) | change))


def test_kafkas_validator_classes_are_accepted(file: Path) -> None:
    package = "org.apache.kafka.common.security.oauthbearer"
    change = {
        "listener.name.x.oauthbearer.sasl.server.callback.handler.class": (
            f"{package}.OAuthBearerValidatorCallbackHandler"
        ),
        f"{PREFIX}.jwt.validator.class": f"{package}.BrokerJwtValidator",
        "sasl.jaas.config": f"{package}.OAuthBearerLoginModule required;",
    }
    assert Users(lookup(settings_for(file) | change)).mechanisms == ("OAUTHBEARER",)


def test_most_specific_setting_wins(file: Path) -> None:
    """The nearest holds: of the mechanism at the listener, of the listener, of all."""
    plain = settings_for(file) | {f"{PREFIX}.expected.issuer": "all"}
    at_listener = plain | {f"listener.name.x.{PREFIX}.expected.issuer": "listener"}
    nearest = at_listener | {f"listener.name.x.oauthbearer.{PREFIX}.expected.issuer": "nearest"}
    for settings, issuer in ((plain, "all"), (at_listener, "listener"), (nearest, "nearest")):
        tokens = Tokens(lookup(settings), MODULE, lambda: NOW)
        assert tokens.check(sign_with_es256(claims_for(iss=issuer))).name == "alice"


def test_missing_package_is_reported(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.delitem(sys.modules, "kbroker.security.tokens")
    monkeypatch.setitem(sys.modules, "joserfc", None)
    with pytest.raises(BadSettings, match=r"pip install 'kbroker\[oauth\]'"):
        Users(lookup(settings_for(file)))
