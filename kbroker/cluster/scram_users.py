"""SCRAM users created at runtime (KIP-554) as a node caches them.

The store has one entry per user, with the credentials by mechanism. A reader of the entries does not
see passwords, but can guess them offline.
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

# Credentials of one user.
Credentials: TypeAlias = Mapping[ScramMechanism, ScramCredential]

UNKNOWN_USER: tuple[Credentials, int] = MappingProxyType({}), ABSENT


class ScramUsers:
    """The SCRAM users of the cluster. `view` updates them with each change of the store."""

    def __init__(self) -> None:
        # Secret for the salts of unknown users; empty until a node with SASL listeners has started.
        self.secret = b""
        self._known: dict[str, tuple[Credentials, int]] = {}
        self._shapes: Counter[tuple[ScramMechanism, Shape]] = Counter()

    def __len__(self) -> int:
        return len(self._known)

    def __contains__(self, name: str) -> bool:
        return name in self._known

    @property
    def names(self) -> Iterable[str]:
        """Names of all users, unordered."""
        return self._known.keys()

    def credentials(self, name: str) -> Credentials:
        """Return the credentials of a user; empty for an unknown user."""
        return self._known.get(name, UNKNOWN_USER)[0]

    def revision(self, name: str) -> int:
        """Return the store revision of a user's entry."""
        return self._known.get(name, UNKNOWN_USER)[1]

    def find(self, mechanism: ScramMechanism, name: str) -> ScramCredential | None:
        """Return a user's credential for a mechanism."""
        return self.credentials(name).get(mechanism)

    def shapes(self, mechanism: ScramMechanism) -> Sequence[Shape]:
        """Return the distinct shapes of a mechanism's credentials, as clients see them."""
        return [shape for of, shape in self._shapes if of is mechanism]

    def put(self, name: str, entry: Entry | None) -> None:
        """Apply a user's entry; None removes the user."""
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
        """Apply the secret for salts."""
        self.secret = base64.b64decode(entry.value["secret"])


def new_secret() -> Document:
    """Return a new random secret for salts."""
    return {"secret": _text(secrets.token_bytes(SECRET_BYTES))}


def to_document(credentials: Credentials) -> Document:
    """Return the stored form of credentials, of a user or a delegation token."""
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
    """Parse stored credentials."""
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
