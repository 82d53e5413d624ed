"""Certificates and tokens of a broker under test and its clients.

Each broker has its own CA and token issuer, so it rejects the credentials of other brokers.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
import tempfile
import weakref
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from .real_time import NS_PER_SECOND, wall_ns

if TYPE_CHECKING:
    from trustme import LeafCert

# Host names and addresses in the certificate of the broker.
OWN_HOSTS = ("localhost", "127.0.0.1", "::1")
# Host name in client certificates. Java rejects certificates with an empty list of host names.
CLIENT_HOST = "client.test"
# Valid user names in certificates and tokens.
NAME = re.compile(r"[\w.@/-]+( +[\w.@/-]+)*")
# Maximum length of a common name in characters (X.520, ub-common-name).
NAME_LENGTH_MAX = 64
# Value of `ssl.principal.mapping.rules` that uses the common name of a certificate as user name.
BY_COMMON_NAME = "RULE:^CN=([^,]+).*$/$1/"
# Lifetime of a token in seconds.
TOKEN_SECONDS = 3600
ISSUER, AUDIENCE = "kbroker-test", "kafka"


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate chain and its private key in PKCS #8, as PEM."""

    chain: str = field(repr=False)
    key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Certificates:
    """Certificates of a broker and its clients.

    Attributes:
        own: Certificate of the broker.
        authority: Certificate of the CA, as PEM.
        clients: Certificates of clients, by user name.
    """

    own: Certificate
    authority: str = field(repr=False)
    clients: Mapping[str, Certificate] = field(repr=False)

    @classmethod
    def new(cls, own_name: str, clients: Iterable[str] = ()) -> Certificates:
        """Issue certificates with a new CA.

        Args:
            own_name: Common name of the broker's certificate.
            clients: User names of the clients.

        Raises:
            ValueError: trustme is not installed.
        """
        try:
            import trustme
        except ModuleNotFoundError:
            raise ValueError(
                "tls=True and certificates need trustme: pip install 'kbroker[testing]'"
            ) from None
        authority = trustme.CA(organization_name="kbroker test")
        return cls(
            _certificate(authority.issue_cert(*OWN_HOSTS, common_name=own_name)),
            authority.cert_pem.bytes().decode(),
            {
                name: _certificate(authority.issue_cert(CLIENT_HOST, common_name=name))
                for name in clients
            },
        )


def _certificate(issued: LeafCert) -> Certificate:
    from cryptography.hazmat.primitives.serialization import (
        Encoding,
        NoEncryption,
        PrivateFormat,
        load_pem_private_key,
    )

    # Java reads only PKCS #8.
    key = load_pem_private_key(issued.private_key_pem.bytes(), None).private_bytes(
        Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()
    )
    chain = b"".join(each.bytes() for each in issued.cert_chain_pems)
    return Certificate(chain.decode(), key.decode())


class Issuer:
    """Issuer of tokens (JWT) for the clients of one broker.

    The files of the issuer are deleted when the object is garbage-collected.

    Raises:
        ValueError: joserfc is not installed.
    """

    def __init__(self) -> None:
        try:
            from joserfc.jwk import ECKey
        except ModuleNotFoundError:
            raise ValueError("tokens need joserfc: pip install 'kbroker[oauth]'") from None
        self._key = ECKey.generate_key("P-256", {"kid": "kbroker-test", "use": "sig"})
        self._directory = Path(tempfile.mkdtemp(prefix="kbroker-tokens-"))
        weakref.finalize(self, shutil.rmtree, self._directory, ignore_errors=True)
        self._numbers = itertools.count(1)
        self._keys = self._write_file(
            "keys.json", json.dumps({"keys": [self._key.as_dict(private=False)]})
        )

    def _write_file(self, name: str, text: str) -> Path:
        path = self._directory / name
        path.write_text(text, encoding="utf-8")
        return path

    def properties(self) -> dict[str, str]:
        """Return the broker properties with which only tokens of this issuer are accepted."""
        return {
            "sasl.oauthbearer.jwks.endpoint.url": self._keys.as_uri(),
            "sasl.oauthbearer.expected.issuer": ISSUER,
            "sasl.oauthbearer.expected.audience": AUDIENCE,
        }

    def token(self, user: str, /, **claims: object) -> str:
        """Return a token that is valid for one hour.

        Args:
            user: User name, the claim `sub`.
            claims: Values that replace the standard claims; None removes a claim.
        """
        from joserfc import jwt

        now = wall_ns() // NS_PER_SECOND
        standard = {
            "iss": ISSUER,
            "aud": AUDIENCE,
            "sub": user,
            "iat": now,
            "exp": now + TOKEN_SECONDS,
        }
        wanted = {
            name: value for name, value in {**standard, **claims}.items() if value is not None
        }
        return jwt.encode({"alg": "ES256", "kid": self._key.kid}, wanted, self._key)

    def file_of(self, token: str) -> Path:
        """Write a token to a new file for Kafka's Java clients, and return its path."""
        return self._write_file(f"{next(self._numbers)}.jwt", token)


def check_names(option: str, names: Iterable[str]) -> list[str]:
    """Check user names for certificates and tokens.

    Raises:
        ValueError: A name is invalid.
    """
    found = [names] if isinstance(names, str) else list(names)
    for name in found:
        if not (isinstance(name, str) and NAME.fullmatch(name) and len(name) <= NAME_LENGTH_MAX):
            raise ValueError(
                f"{option}: invalid name {name!r}; use letters, digits and . _ @ / -, at most "
                f"{NAME_LENGTH_MAX} characters"
            )
    return found
