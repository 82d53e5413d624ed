"""Keys and values of a cluster in etcd."""

from __future__ import annotations

import json
from base64 import b64decode
from typing import NamedTuple

from kbroker.storage.errors import StorageError

from .etcd_gateway import Message, to_base64
from .store import Document


class Held(NamedTuple):
    """A key in etcd: `created` is its create revision, and `version` counts the puts since then."""

    key: str
    value: Document
    revision: int
    created: int
    version: int

    def is_older_than(self, known: Held) -> bool:
        """Return True if etcd holds an older state: both numbers increase with each put of a key."""
        is_same = self.created == known.created
        return self.revision < known.revision or (is_same and self.version < known.version)


class EtcdKeys:
    """Converts between the key names of a cluster and the key names in etcd.

    Args:
        prefix: Prefix of all keys of the cluster in etcd.
    """

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def encode(self, key: str) -> str:
        """Return the name of a key in messages to etcd."""
        return to_base64((self._prefix + key).encode())

    def decode(self, name: str) -> str:
        """Return the key that a message from etcd names."""
        return b64decode(name).decode().removeprefix(self._prefix)

    def range_of(self, prefix: str) -> Message:
        """Return the range of all keys that begin with `prefix`."""
        first = (self._prefix + prefix).encode()
        return {"key": to_base64(first), "range_end": to_base64(_end_of(first))}

    def held_in(self, pair: Message) -> Held:
        """Decode a key with its value.

        Raises:
            StorageError: The value was not written by kbroker.
        """
        key = self.decode(pair["key"])
        try:
            value = json.loads(b64decode(pair.get("value", "")))
        except ValueError:
            raise StorageError(
                f"{self._prefix}{key} in etcd was not written by kbroker; use another name for the "
                "cluster"
            ) from None
        numbers = (int(pair[each]) for each in ("mod_revision", "create_revision", "version"))
        return Held(key, value, *numbers)


def _end_of(prefix: bytes) -> bytes:
    """Return the first key after all keys that begin with `prefix`."""
    kept = prefix.rstrip(b"\xff")
    return kept[:-1] + bytes([kept[-1] + 1]) if kept else b"\0"
