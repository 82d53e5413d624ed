"""Delegation tokens (KIP-48) as a node caches them.

The store has one entry per token ID. It contains the SCRAM credentials and a hash of the HMAC for
lookups, but not the HMAC: a reader of the entries cannot authenticate without guessing 512 bits.
"""

from __future__ import annotations

import base64
from collections import Counter
from collections.abc import Iterator
from itertools import islice

from kbroker.protocol.errors import ErrorCode, KafkaError
from kbroker.security.delegation import DelegationToken, digest_of
from kbroker.security.principals import Principal

from .scram_users import credentials_from, to_document
from .store import ABSENT, Document, Entry

# Maximum number of tokens in a cluster. All nodes keep them in memory.
TOKENS_MAX = 10_000
# Maximum number of tokens of one requester, so that no principal can use up the cluster's limit.
TOKENS_PER_REQUESTER_MAX = 1_000


class DelegationTokens:
    """The delegation tokens of the cluster. `view` updates them with each change of the store."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[DelegationToken, int]] = {}
        self._by_digest: dict[bytes, str] = {}
        self._count_by_requester: Counter[Principal] = Counter()

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[DelegationToken]:
        return (token for token, _ in tuple(self._known.values()))

    def get(self, token_id: str) -> DelegationToken | None:
        """Return the token with an ID."""
        known = self._known.get(token_id)
        return None if known is None else known[0]

    def with_hmac(self, hmac: bytes) -> DelegationToken | None:
        """Return the token with an HMAC."""
        token_id = self._by_digest.get(digest_of(hmac))
        return None if token_id is None else self.get(token_id)

    def revision(self, token_id: str) -> int:
        """Return the store revision of a token's entry."""
        known = self._known.get(token_id)
        return ABSENT if known is None else known[1]

    def check_token_limit(self, requester: Principal) -> None:
        """Raise KafkaError if the cluster or the requester has the maximum number of tokens."""
        if (
            len(self) >= TOKENS_MAX
            or self._count_by_requester[requester] >= TOKENS_PER_REQUESTER_MAX
        ):
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"token limit reached ({TOKENS_MAX} in total, {TOKENS_PER_REQUESTER_MAX} for {requester}); "
                "expire unused tokens",
            )

    def expired(self, now_ms: int, count: int) -> dict[str, int]:
        """Return IDs and revisions of at most `count` expired tokens."""
        found = (
            (token.id, revision)
            for token, revision in self._known.values()
            if token.is_expired(now_ms)
        )
        return dict(islice(found, count))

    def put(self, token_id: str, entry: Entry | None) -> None:
        """Apply a token's entry; None removes it."""
        known = self._known.pop(token_id, None)
        if known is not None:
            del self._by_digest[known[0].digest]
            self._count(known[0].requester, -1)
        if entry is not None:
            token = read_token(token_id, entry.value)
            self._known[token_id] = token, entry.revision
            self._by_digest[token.digest] = token_id
            self._count(token.requester, 1)

    def _count(self, requester: Principal, change: int) -> None:
        """Count a token of a requester, in constant time."""
        self._count_by_requester[requester] += change
        if not self._count_by_requester[requester]:
            del self._count_by_requester[requester]


def document_of(token: DelegationToken) -> Document:
    """Return the stored form of a token."""
    return {
        "owner": [*token.owner],
        "requester": [*token.requester],
        "renewers": [[*each] for each in token.renewers],
        "issued_ms": token.issued_ms,
        "expires_ms": token.expires_ms,
        "max_ms": token.max_ms,
        "digest": base64.b64encode(token.digest).decode(),
        "credentials": to_document(token.credentials),
    }


def read_token(token_id: str, document: Document) -> DelegationToken:
    """Parse a stored token."""
    return DelegationToken(
        token_id,
        Principal(*document["owner"]),
        Principal(*document["requester"]),
        tuple(Principal(*each) for each in document["renewers"]),
        document["issued_ms"],
        document["expires_ms"],
        document["max_ms"],
        base64.b64decode(document["digest"]),
        credentials_from(document["credentials"]),
    )
