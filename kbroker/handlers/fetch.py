"""Fetch: stored batches for consumers and followers."""

from __future__ import annotations

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.fetch import FetchRequest
from kbroker.runtime.time_slices import Later

from .context import Context
from .fetch_operation import Answer, FetchOperation
from .registry import handles


@handles(ApiKey.FETCH, versions="0-18", read_only=True)
def fetch(ctx: Context, request: FetchRequest) -> Answer | Later[Answer]:
    """Read whole batches, starting with the batch that contains the fetch offset.

    Consumers read up to the high watermark (read_committed: the last stable offset). The request
    waits for `min_bytes`, for at most `max_wait_ms`.

    Followers read up to the log end offset, and their fetch offset acknowledges replication. Their
    request completes when records arrive, and soon after the high watermark or the log start
    offset changed. A consumer with a rack may be redirected to a follower in that rack, which
    serves records up to its own high watermark (KIP-392). A client above its quota gets no records
    and is throttled (KIP-13, KIP-219). Above `pending.fetch.max.partitions`, a client gets a
    response at once and is throttled instead of waiting.

    Versions: 0 to 3 get message sets, 0 and 1 with magic 0, as in Kafka before 4.0. 7 adds sessions
    (KIP-227), 11 racks, 12 the check for diverging epochs (KIP-595), 13 topic IDs, 15 the broker
    epoch of a follower (KIP-903). A replica ID without the registered broker epoch is rejected
    (CVE-2018-1288).

    Differs from Kafka: versions 0 to 2 also get a whole batch that exceeds their maximum size.
    Kafka sends a part of it, which clients report as an error. A follower replica that lags behind
    the fetch offset returns OFFSET_NOT_AVAILABLE instead of OFFSET_OUT_OF_RANGE, which would make
    consumers reset their position.
    """
    return ctx.time_slice.run(FetchOperation(ctx, request).begin(request))
