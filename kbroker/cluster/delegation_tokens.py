"""Delegation tokens (KIP-48), as a node knows them.

Each has one entry under its id. The HMAC is not in it, but what a server keeps of a password, and a
hash by which a token is found: who reads them cannot log in, and has 512 bits to guess.
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

TOKENS_MAX = 10_000
"""Of a cluster; they stay in memory."""
OF_ONE_MAX = 1_000
"""That one principal has made: nobody takes all the room there is."""


class DelegationTokens:
    """All of them. What they are changes when the store's changes come: see `view`."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[DelegationToken, int]] = {}
        self._by_digest: dict[bytes, str] = {}
        self._of: Counter[Principal] = Counter()

    def __len__(self) -> int:
        return len(self._known)

    def __iter__(self) -> Iterator[DelegationToken]:
        return (token for token, _ in tuple(self._known.values()))

    def get(self, token_id: str) -> DelegationToken | None:
        """The token with this id."""
        known = self._known.get(token_id)
        return None if known is None else known[0]

    def with_hmac(self, hmac: bytes) -> DelegationToken | None:
        """The token with this HMAC, which shows that who asks knows it."""
        token_id = self._by_digest.get(digest_of(hmac))
        return None if token_id is None else self.get(token_id)

    def revision(self, token_id: str) -> int:
        """That of a token's entry."""
        known = self._known.get(token_id)
        return ABSENT if known is None else known[1]

    def check_room(self, requester: Principal) -> None:
        """Raise KafkaError where there are as many tokens as may be, of all or of one."""
        if len(self) >= TOKENS_MAX or self._of[requester] >= OF_ONE_MAX:
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION,
                f"there may be {TOKENS_MAX} tokens, and {OF_ONE_MAX} of {requester}; let some end that "
                "are not needed",
            )

    def over(self, now_ms: int, count: int) -> dict[str, int]:
        """Ids and revisions of some tokens that have ended."""
        found = (
            (token.id, revision)
            for token, revision in self._known.values()
            if token.is_over(now_ms)
        )
        return dict(islice(found, count))

    def put(self, token_id: str, entry: Entry | None) -> None:
        """Take over a token's entry; None forgets it."""
        known = self._known.pop(token_id, None)
        if known is not None:
            del self._by_digest[known[0].digest]
            self._of -= Counter([known[0].requester])
        if entry is not None:
            token = read_token(token_id, entry.value)
            self._known[token_id] = token, entry.revision
            self._by_digest[token.digest] = token_id
            self._of[token.requester] += 1


def document_of(token: DelegationToken) -> Document:
    """A token's entry."""
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
    """A token as it is stored."""
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
