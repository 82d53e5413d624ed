"""Random identifiers of topics, clusters and clients."""

from __future__ import annotations

import os
from uuid import UUID


def random_uuid() -> UUID:
    """Return a random UUID of version 4.

    The bytes come from the operating system and not from `uuid.uuid4`, which tests often patch. A
    broker in the same process would otherwise give the same ID to two topics.
    """
    return UUID(bytes=os.urandom(16), version=4)
