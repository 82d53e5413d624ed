"""SCRAM-SHA-256 and SCRAM-SHA-512, server and client (RFC 5802, RFC 7677, KIP-84).

Neither side sends the password. The server stores a salted hash. The client proves that it knows the
password of the hash, and the server proves that it has the hash. For an unknown user the server fakes
a credential that looks like those of existing users. The exchange then fails at the end with the
error of a wrong password.
Kafka's extension ``tokenauth=true`` marks the user name as the ID of a delegation token (KIP-48).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import re
import secrets
from collections.abc import Callable, Collection
from enum import StrEnum
from itertools import islice
from typing import NamedTuple, TypeAlias

from .errors import AuthenticationError

# Hash iterations of stored credentials, with Kafka's limits.
ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
# Maximum number of hash iterations that the client accepts: some tenths of a second of CPU time.
CLIENT_ITERATIONS_MAX = 1_000_000
MESSAGE_BYTES_MAX = 4096
SALT_BYTES = 16
# Maximum number of shapes considered for a fake credential; each takes some microseconds.
SHAPES_MAX = 20


class ScramMechanism(StrEnum):
    """The SCRAM mechanisms, by their SASL names."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def hash_name(self) -> str:
        """Name of the hash function in `hashlib`."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def number(self) -> int:
        """Number of the mechanism in the credential requests (KIP-554)."""
        return 1 if self is ScramMechanism.SHA_256 else 2

    @classmethod
    def numbered(cls, number: int) -> ScramMechanism | None:
        """Return the mechanism with a number; None if no mechanism has it."""
        return next((each for each in cls if each.number == number), None)


class Shape(NamedTuple):
    """The properties of a credential that clients see before they authenticate."""

    iterations: int = ITERATIONS_MIN
    salt_bytes: int = SALT_BYTES


class ScramCredential(NamedTuple):
    """The stored credential of a user."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        """Hide the keys: attackers could use them to guess the password or impersonate the server."""
        return f"ScramCredential(iterations={self.iterations})"

    @property
    def shape(self) -> Shape:
        """The properties that unauthenticated clients can see."""
        return Shape(self.iterations, len(self.salt))


class ScramUser(NamedTuple):
    """The user name that a client claims; with `is_token` the ID of a delegation token."""

    name: str
    is_token: bool = False


# Returns the credential of a user; None for an unknown user.
Find: TypeAlias = Callable[[ScramUser], ScramCredential | None]


def salted_password(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> bytes:
    """Return the salted hash of a password; takes some milliseconds of CPU time."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_from(
    mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """Return the credential of a salted password, as in AlterUserScramCredentials (KIP-554)."""
    client_key = _mac(mechanism, salted, b"Client Key")
    stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
    return ScramCredential(salt, stored_key, _mac(mechanism, salted, b"Server Key"), iterations)


def credential_of(
    mechanism: ScramMechanism,
    password: str,
    iterations: int = ITERATIONS_MIN,
    salt: bytes | None = None,
) -> ScramCredential:
    """Return the credential of a password.

    Args:
        mechanism: Mechanism of the user.
        password: The password.
        iterations: Iterations of the hash.
        salt: Salt; None generates a random one.
    """
    salt = salt or secrets.token_bytes(SALT_BYTES)
    salted = salted_password(mechanism, password, salt, iterations)
    return credential_from(mechanism, salted, salt, iterations)


def salt_of(secret: bytes, name: str, size: int = SALT_BYTES) -> bytes:
    """Return the salt of a user in the settings, or of an unknown user; neither has a stored salt.

    All nodes derive the salt from the same secret. Otherwise a client could compare the first
    responses of several nodes or runs to find out which users exist.
    """
    return hashlib.shake_256(secret + name.encode()).digest(size)


class ScramServer:
    """The server side of one exchange: pass the client's two messages to `answer`.

    Args:
        mechanism: The SCRAM mechanism.
        find: Returns the credential of a user.
        secret: Random secret for the salts of unknown users; it must stay the same.
        nonce: Returns an unpredictable nonce.
        shapes: Credential shapes of the existing users.
    """

    def __init__(
        self,
        mechanism: ScramMechanism,
        find: Find,
        secret: bytes,
        nonce: Callable[[], str] = lambda: secrets.token_urlsafe(24),
        shapes: Collection[Shape] = (),
    ) -> None:
        self._mechanism = mechanism
        self._find = find
        self._secret = secret
        self._shapes = shapes
        self._new_nonce = nonce
        self._nonce = ""
        self._header = b""
        self._first_messages = b""
        self._credential: ScramCredential | None = None
        self._claimed: ScramUser | None = None
        # The authenticated user; None before.
        self.user: ScramUser | None = None

    def answer(self, message: bytes) -> bytes:
        """Return the response to the client's next message. Raises AuthenticationError."""
        if len(message) > MESSAGE_BYTES_MAX or self.user is not None:
            raise AuthenticationError("unexpected message")
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise AuthenticationError("the message is not UTF-8") from None
        return self._first(text) if self._claimed is None else self._final(text)

    def _first(self, text: str) -> bytes:
        match = re.fullmatch(_CLIENT_FIRST, text)
        if match is None:
            raise AuthenticationError("malformed first message")
        name = _unescape_name(match["name"])
        if match["authorization"] is not None and _unescape_name(match["authorization"]) != name:
            raise AuthenticationError("the authorization identity differs from the user")
        extensions = dict(part.split("=", 1) for part in match["extensions"].split(",") if part)
        self._claimed = ScramUser(name, extensions.get("tokenauth", "").lower() == "true")
        self._credential = self._find(self._claimed)
        fake = self._fake_credential(self._claimed)  # always, so that the time reveals nothing
        known = self._credential or fake
        self._nonce = match["nonce"] + self._new_nonce()
        salt = base64.b64encode(known.salt).decode()
        answer = f"r={self._nonce},s={salt},i={known.iterations}"
        self._header = match["header"].encode()
        self._first_messages = f"{match['bare']},{answer}".encode()
        return answer.encode()

    def _fake_credential(self, user: ScramUser) -> ScramCredential:
        """Return a credential for an unknown user that is the same in every exchange.

        Rendezvous hashing selects one of the `shapes`, so that the selection changes only if the
        selected shape is removed or a nearer one is added. All delegation tokens have the same shape.
        """
        name = user.name

        def nearness(shape: Shape) -> bytes:
            text = f"{shape.iterations},{shape.salt_bytes},{name}"
            return _mac(ScramMechanism.SHA_256, self._secret, text.encode())

        shapes = () if user.is_token else islice(self._shapes, SHAPES_MAX)
        shape = max(shapes, key=nearness, default=Shape())
        salt = salt_of(self._secret, name, shape.salt_bytes)
        return ScramCredential(salt, b"", b"", shape.iterations)

    def _final(self, text: str) -> bytes:
        match = re.fullmatch(_CLIENT_FINAL, text)
        if match is None:
            raise AuthenticationError("malformed final message")
        if not hmac.compare_digest(match["nonce"].encode(), self._nonce.encode()):
            if match["nonce"].endswith(self._nonce):
                # librdkafka#4895; Kafka 3.8.1 to 3.9 accepted this, Kafka 4 does not.
                raise AuthenticationError(
                    "the final message contains the client nonce twice, a bug of librdkafka before 2.6.1; "
                    "upgrade the client"
                )
            raise AuthenticationError("the nonce of the final message belongs to another exchange")
        if _decode_base64(match["binding"]) != self._header:
            raise AuthenticationError(
                "the channel binding of the final message differs from the first message"
            )
        proof = _decode_base64(match["proof"])
        signed = self._first_messages + b"," + match["unproved"].encode()
        known = self._credential or ScramCredential(b"", self._secret, self._secret, 0)
        if not self._is_proof_valid(proof, known, signed) or self._credential is None:
            claimed = "" if self._claimed is None else self._claimed.name
            raise AuthenticationError("the user or the password is wrong", claimed=claimed)
        self.user = self._claimed
        signature = _mac(self._mechanism, known.server_key, signed)
        return b"v=" + base64.b64encode(signature)

    def _is_proof_valid(self, proof: bytes, known: ScramCredential, signed: bytes) -> bool:
        """Return True if the client proof matches the stored key."""
        signature = _mac(self._mechanism, known.stored_key, signed)
        if len(proof) != len(signature):
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        stored_key = hashlib.new(self._mechanism.hash_name, client_key).digest()
        return hmac.compare_digest(stored_key, known.stored_key)


class ScramClient:
    """The client side of one exchange: send `first`, then `final`, then `check` the response.

    Args:
        mechanism: The SCRAM mechanism.
        name: User name, or the ID of a delegation token.
        password: The password, or the HMAC of the token.
        is_token: True for a delegation token (KIP-48).
    """

    def __init__(
        self, mechanism: ScramMechanism, name: str, password: str, *, is_token: bool = False
    ) -> None:
        self._mechanism = mechanism
        self._password = password
        self._nonce = secrets.token_urlsafe(24)
        escaped = name.replace("=", "=3D").replace(",", "=2C")
        self._bare = f"n={escaped},r={self._nonce}" + (",tokenauth=true" if is_token else "")
        self._signature = b""

    def first(self) -> bytes:
        """Return the first message."""
        return f"n,,{self._bare}".encode()

    def final(self, answer: bytes) -> bytes:
        """Return the final message for the server's first response. Raises AuthenticationError."""
        match = re.fullmatch(_SERVER_FIRST, answer.decode(errors="replace"))
        if match is None or not match["nonce"].startswith(self._nonce):
            raise AuthenticationError("malformed first message from the server")
        iterations = int(match["iterations"])
        if iterations > CLIENT_ITERATIONS_MAX:
            raise AuthenticationError(
                f"the server requires {iterations} iterations (maximum: {CLIENT_ITERATIONS_MAX})"
            )
        salt = _decode_base64(match["salt"])
        salted = salted_password(self._mechanism, self._password, salt, iterations)
        known = credential_from(self._mechanism, salted, salt, iterations)
        unproved = f"c=biws,r={match['nonce']}"
        signed = f"{self._bare},{answer.decode()},{unproved}".encode()
        client_key = _mac(self._mechanism, salted, b"Client Key")
        signature = _mac(self._mechanism, known.stored_key, signed)
        proof = bytes(a ^ b for a, b in zip(client_key, signature, strict=True))
        self._signature = _mac(self._mechanism, known.server_key, signed)
        return f"{unproved},p={base64.b64encode(proof).decode()}".encode()

    def check(self, answer: bytes) -> None:
        """Verify the server's signature. Raises AuthenticationError if it is wrong."""
        if not hmac.compare_digest(answer, b"v=" + base64.b64encode(self._signature)):
            raise AuthenticationError("the SCRAM signature of the server is invalid")


def _mac(mechanism: ScramMechanism, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, mechanism.hash_name)


def _decode_base64(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationError("a message contains invalid base64") from None


def _unescape_name(text: str) -> str:
    """Remove the escapes of a name in a message."""
    if re.search(r"=(?!2C|3D)", text):
        raise AuthenticationError("a name contains an invalid escape")
    return text.replace("=2C", ",").replace("=3D", "=")


# Patterns are compiled at the first authentication, because most servers never need them.
_VALUE = r"[^\x00,]+"
_PRINTABLE = r"[\x21-\x2b\x2d-\x7e]+"
_CLIENT_FIRST = (
    rf"(?P<header>[ny],(?:a=(?P<authorization>{_VALUE}))?,)"
    rf"(?P<bare>n=(?P<name>{_VALUE}),r=(?P<nonce>{_PRINTABLE})"
    rf"(?P<extensions>(?:,[a-zA-Z]+={_VALUE})*))"
)
_SERVER_FIRST = (
    rf"r=(?P<nonce>{_PRINTABLE}),s=(?P<salt>[^,]+),i=(?P<iterations>[1-9]\d{{0,6}})(?:,.*)?"
)
# A mandatory extension (`m=`) is rejected.
_CLIENT_FINAL = (
    rf"(?P<unproved>c=(?P<binding>[^,]+),r=(?P<nonce>{_PRINTABLE})(?:,[a-ln-zA-Z]+={_VALUE})*)"
    rf",p=(?P<proof>[^,]+)"
)
