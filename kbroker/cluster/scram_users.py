"""SCRAM users that clients make (KIP-554), as a node knows them.

Each has one entry: by mechanism what a server keeps of a password, which shows no password to who
reads it, but lets him guess.
"""

from __future__ import annotations

import base64
import secrets
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import TypeAlias

from kbroker.security.scram import ScramCredential, ScramMechanism, Shape

from .store import ABSENT, Document, Entry

SECRET_BYTES = 32

Credentials: TypeAlias = Mapping[ScramMechanism, ScramCredential]
"""Those of one user."""

NOBODY: tuple[Credentials, int] = MappingProxyType({}), ABSENT


class ScramUsers:
    """All of them. What they are changes when the store's changes come: see `view`."""

    def __init__(self) -> None:
        self.secret = b""
        """Secret for salts of configured and unknown users; empty before a node with logins started."""
        self._known: dict[str, tuple[Credentials, int]] = {}
        self._shapes: Counter[tuple[ScramMechanism, Shape]] = Counter()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: str) -> bool:
        return name in self._known

    @property
    def names(self) -> Iterable[str]:
        """In no order."""
        return self._known.keys()

    def credentials(self, name: str) -> Credentials:
        """Those of a user; none of a user whom there is not."""
        return self._known.get(name, NOBODY)[0]

    def revision(self, name: str) -> int:
        """That of a user's entry."""
        return self._known.get(name, NOBODY)[1]

    def find(self, mechanism: ScramMechanism, name: str) -> ScramCredential | None:
        """A user's credential of a mechanism."""
        return self.credentials(name).get(mechanism)

    def shapes(self, mechanism: ScramMechanism) -> Sequence[Shape]:
        """What the credentials of a mechanism look like from outside, each once."""
        return [shape for of, shape in self._shapes if of is mechanism]

    def put(self, name: str, entry: Entry | None) -> None:
        """Take over a user's entry; None forgets the user."""
        for mechanism, credential in self.credentials(name).items():
            shape = mechanism, credential.shape
            self._shapes[shape] -= 1
            if not self._shapes[shape]:
                del self._shapes[shape]
        if entry is None:
            self._known.pop(name, None)
            return
        credentials = credentials_from(entry.value)
        self._known[name] = credentials, entry.revision
        self._shapes.update((each, credential.shape) for each, credential in credentials.items())

    def put_secret(self, entry: Entry) -> None:
        """Take over the secret for salts."""
        self.secret = base64.b64decode(entry.value["secret"])


def new_secret() -> Document:
    """Make a secret for salts."""
    return {"secret": _text(secrets.token_bytes(SECRET_BYTES))}


def to_document(credentials: Credentials) -> Document:
    """A user's entry; a token has the like."""
    return {
        mechanism.value: {
            "salt": _text(each.salt),
            "stored_key": _text(each.stored_key),
            "server_key": _text(each.server_key),
            "iterations": each.iterations,
        }
        for mechanism, each in credentials.items()
    }


def credentials_from(document: Document) -> Credentials:
    """Those of an entry."""
    return {
        ScramMechanism(mechanism): ScramCredential(
            base64.b64decode(each["salt"]),
            base64.b64decode(each["stored_key"]),
            base64.b64decode(each["server_key"]),
            each["iterations"],
        )
        for mechanism, each in document.items()
    }


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()
