"""The server's side of SCRAM-SHA-256 and SCRAM-SHA-512 (RFC 5802, RFC 7677, KIP-84).

Neither side tells the other its password. The server keeps a salted hash; the client proves that it
knows the password from which that was made, and the server that it has the hash. Of an unknown user
the server pretends to have one like those that it has, so that only the end tells, with the words
for a wrong password.
Kafka's extension ``tokenauth=true`` says that the user is a delegation token (KIP-48).
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

from .errors import LoginFailed

ITERATIONS_MIN, ITERATIONS_MAX = 4096, 16384
"""As Kafka bounds them: fewer protect nothing, more cost the client."""
CLIENT_ITERATIONS_MAX = 1_000_000
"""What a client does for a server: some tenths of a second."""
MESSAGE_BYTES_MAX = 4096
SALT_BYTES = 16
SHAPES_MAX = 20
"""Of those that a user whom there is not can have: each costs some microseconds."""


class ScramMechanism(StrEnum):
    """The mechanisms, by the names that clients ask for."""

    SHA_256 = "SCRAM-SHA-256"
    SHA_512 = "SCRAM-SHA-512"

    @property
    def hash_name(self) -> str:
        """As `hashlib` has it."""
        return "sha256" if self is ScramMechanism.SHA_256 else "sha512"

    @property
    def number(self) -> int:
        """As requests about credentials have it (KIP-554)."""
        return 1 if self is ScramMechanism.SHA_256 else 2

    @classmethod
    def numbered(cls, number: int) -> ScramMechanism | None:
        """The mechanism with that number; None when there is none."""
        return next((each for each in cls if each.number == number), None)


class Shape(NamedTuple):
    """What a client sees of a credential before it has shown anything, but for the salt itself."""

    iterations: int = ITERATIONS_MIN
    salt_bytes: int = SALT_BYTES


class ScramCredential(NamedTuple):
    """What a server keeps of a password."""

    salt: bytes
    stored_key: bytes
    server_key: bytes
    iterations: int

    def __repr__(self) -> str:
        """Without the keys: who has them can guess passwords, and play the server."""
        return f"ScramCredential(iterations={self.iterations})"

    @property
    def shape(self) -> Shape:
        """What it looks like from outside."""
        return Shape(self.iterations, len(self.salt))


class ScramUser(NamedTuple):
    """Whom a client says it is; `is_token` where the name is that of a delegation token."""

    name: str
    is_token: bool = False


Find: TypeAlias = Callable[[ScramUser], ScramCredential | None]
"""The credential of a user; None when there is none."""


def salted_password(
    mechanism: ScramMechanism, password: str, salt: bytes, iterations: int
) -> bytes:
    """The hash that both sides make of a password: some milliseconds of a processor."""
    return hashlib.pbkdf2_hmac(mechanism.hash_name, password.encode(), salt, iterations)


def credential_from(
    mechanism: ScramMechanism, salted: bytes, salt: bytes, iterations: int
) -> ScramCredential:
    """What a server keeps of a salted password, as AlterUserScramCredentials brings it (KIP-554)."""
    client_key = _mac(mechanism, salted, b"Client Key")
    stored_key = hashlib.new(mechanism.hash_name, client_key).digest()
    return ScramCredential(salt, stored_key, _mac(mechanism, salted, b"Server Key"), iterations)


def credential_of(
    mechanism: ScramMechanism,
    password: str,
    iterations: int = ITERATIONS_MIN,
    salt: bytes | None = None,
) -> ScramCredential:
    """Hash a password, as a server keeps it.

    Args:
        mechanism: Mechanism by which the user logs in.
        password: The password.
        iterations: Rounds of the hash.
        salt: None: a new random one.
    """
    salt = salt or secrets.token_bytes(SALT_BYTES)
    salted = salted_password(mechanism, password, salt, iterations)
    return credential_from(mechanism, salted, salt, iterations)


def salt_of(secret: bytes, name: str, size: int = SALT_BYTES) -> bytes:
    """Return the salt of a user that has none of its own: one of the settings, or an unknown one.

    Both get it from the same secret on every node. Otherwise a client could compare the first
    answers of several nodes, or of several runs, and learn which users exist.
    """
    return hashlib.shake_256(secret + name.encode()).digest(size)


class ScramServer:
    """One exchange with one client: `answer` its two messages.

    Parameters: `find` looks a user up; `secret` is random and stays the same for a server, so that the
    salt of a user whom there is not stays the same too; `nonce` makes a part that nobody can foresee;
    `shapes` are those of the users that there are.
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
        self.user: ScramUser | None = None
        """Who it is, once that is shown."""

    def answer(self, message: bytes) -> bytes:
        """The answer to the client's next message. Raises LoginFailed."""
        if len(message) > MESSAGE_BYTES_MAX or self.user is not None:
            raise LoginFailed("a message that is not expected")
        try:
            text = message.decode()
        except UnicodeDecodeError:
            raise LoginFailed("a message that is no text") from None
        return self._first(text) if self._claimed is None else self._final(text)

    def _first(self, text: str) -> bytes:
        match = re.fullmatch(_CLIENT_FIRST, text)
        if match is None:
            raise LoginFailed("the first message is not understood")
        name = _plain_name(match["name"])
        if match["authorization"] is not None and _plain_name(match["authorization"]) != name:
            raise LoginFailed("nobody acts for somebody else")
        extensions = dict(part.split("=", 1) for part in match["extensions"].split(",") if part)
        self._claimed = ScramUser(name, extensions.get("tokenauth", "").lower() == "true")
        self._credential = self._find(self._claimed)
        pretended = self._pretended(self._claimed)  # always: the time that it takes tells something
        known = self._credential or pretended
        self._nonce = match["nonce"] + self._new_nonce()
        salt = base64.b64encode(known.salt).decode()
        answer = f"r={self._nonce},s={salt},i={known.iterations}"
        self._header = match["header"].encode()
        self._first_messages = f"{match['bare']},{answer}".encode()
        return answer.encode()

    def _pretended(self, user: ScramUser) -> ScramCredential:
        """As that of a user whom there is: the same for each time that somebody asks.

        It has one of the `shapes`, another one only when that which it has is gone, or a new one is
        nearer to the name. Tokens have one shape.
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
            raise LoginFailed("the last message is not understood")
        if not hmac.compare_digest(match["nonce"].encode(), self._nonce.encode()):
            if match["nonce"].endswith(self._nonce):
                # librdkafka#4895; Kafka took that from 3.8.1 on, and 4 does not any more.
                raise LoginFailed(
                    "the last message has the client's nonce twice, as librdkafka before 2.6.1 says it: "
                    "take a newer one"
                )
            raise LoginFailed("the last message belongs to another exchange")
        if _decoded(match["binding"]) != self._header:
            raise LoginFailed("the last message does not fit the first one")
        proof = _decoded(match["proof"])
        signed = self._first_messages + b"," + match["unproved"].encode()
        known = self._credential or ScramCredential(b"", self._secret, self._secret, 0)
        if not self._proves(proof, known, signed) or self._credential is None:
            claimed = "" if self._claimed is None else self._claimed.name
            raise LoginFailed("the user or the password is wrong", claimed=claimed)
        self.user = self._claimed
        signature = _mac(self._mechanism, known.server_key, signed)
        return b"v=" + base64.b64encode(signature)

    def _proves(self, proof: bytes, known: ScramCredential, signed: bytes) -> bool:
        """Whether it was made with the key that `known` is the hash of."""
        signature = _mac(self._mechanism, known.stored_key, signed)
        if len(proof) != len(signature):
            return False
        client_key = bytes(a ^ b for a, b in zip(proof, signature, strict=True))
        made = hashlib.new(self._mechanism.hash_name, client_key).digest()
        return hmac.compare_digest(made, known.stored_key)


class ScramClient:
    """The client's side of one exchange: send `first`, then `final`, then `check` the last answer.

    Parameters: `is_token` where the name is the id of a delegation token (KIP-48).
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
        """The first message."""
        return f"n,,{self._bare}".encode()

    def final(self, answer: bytes) -> bytes:
        """The last message, for the server's answer to the first. Raises LoginFailed."""
        match = re.fullmatch(_SERVER_FIRST, answer.decode(errors="replace"))
        if match is None or not match["nonce"].startswith(self._nonce):
            raise LoginFailed("the server's first answer is not understood")
        iterations = int(match["iterations"])
        if iterations > CLIENT_ITERATIONS_MAX:
            raise LoginFailed(f"the server asks for {iterations} iterations")
        salt = _decoded(match["salt"])
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
        """Whether the server has the password's hash. Raises LoginFailed when it has not."""
        if not hmac.compare_digest(answer, b"v=" + base64.b64encode(self._signature)):
            raise LoginFailed("the server does not show that it knows the password")


def _mac(mechanism: ScramMechanism, key: bytes, data: bytes) -> bytes:
    return hmac.digest(key, data, mechanism.hash_name)


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise LoginFailed("a message has what is no base64") from None


def _plain_name(text: str) -> str:
    """A name without the escapes that it has in messages."""
    if re.search(r"=(?!2C|3D)", text):
        raise LoginFailed("a name with a sign that is not escaped")
    return text.replace("=2C", ",").replace("=3D", "=")


# Patterns are compiled when somebody logs in for the first time: most servers start without.
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
_CLIENT_FINAL = (
    rf"(?P<unproved>c=(?P<binding>[^,]+),r=(?P<nonce>{_PRINTABLE})(?:,[a-ln-zA-Z]+={_VALUE})*)"  # `m=` would be one that must be understood
    rf",p=(?P<proof>[^,]+)"
)
