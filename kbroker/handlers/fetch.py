"""Fetch: stored batches, as they are, from the log to clients and to followers."""

from __future__ import annotations

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.runtime.time_slices import Later

from .context import Context
from .fetch_operation import Answer, FetchOperation
from .registry import handles


@handles(ApiKey.FETCH, versions="0-18", only_looks=True)
def fetch(ctx: Context, request: FetchRequest) -> Answer | Later[Answer]:
    """Behaviour: whole batches from the one that holds the fetch offset, up to the high watermark
    (read_committed: the last stable offset); waits for `min_bytes` until `max_wait_ms`.

    A follower reads up to the end of the log, and its offset says what it has; it is answered as
    soon as there is more, and soon after the high watermark or the log start moved. A consumer that
    names its rack may be sent to a follower there, which serves up to its own high watermark
    (KIP-392). A client above its quota gets no records, and waits (KIP-13, KIP-219).

    Versions: 0 to 3 are answered in the formats before record batches, 0 and 1 in format 0, as
    Kafka did before 4.0. 7 brings sessions (KIP-227), 11 racks, 12 the check for a diverged reader
    (KIP-595), 13 topic ids, 15 the broker epoch of a follower (KIP-903): without the one that the
    node is registered under, a replica id is refused (CVE-2018-1288).

    Differs from Kafka: versions 0 to 2 too get a whole batch that is larger than they asked for;
    Kafka sent a part of it, which clients report as an error. A follower that has less than its
    reader answers OFFSET_NOT_AVAILABLE, not OFFSET_OUT_OF_RANGE, which makes readers start over.
    """
    return ctx.time_slice.run(FetchOperation(ctx, request).begin())
