"""ApiVersions (key 18)."""

from ..schema import Int16, Int32, Int64, message, struct, wire


@message(key=18, versions="0-5", flexible="3+")
class ApiVersionsRequest:
    """Request for the API keys and versions of the broker; the first request of most clients."""

    client_software_name: str = wire(since=3)
    """KIP-511."""
    client_software_version: str = wire(since=3)
    cluster_id: str | None = wire(since=5)
    """Cluster that the client expects to reach, or null (KIP-1242)."""
    node_id: Int32 = wire(since=5, default=-1)
    """Node that the client expects to reach; -1 without `cluster_id`."""


@message(key=18, versions="0-5", flexible="3+")
class ApiVersionsResponse:
    """The keys, versions and features of a broker.

    Its header always has version 0. The response to an unknown version has a version 0 body
    (KIP-511).
    """

    @struct
    class ApiVersion:
        api_key: Int16 = 0
        min_version: Int16 = 0
        max_version: Int16 = 0

    @struct
    class SupportedFeature:
        """The levels of a feature that this broker supports."""

        name: str = ""
        min_version: Int16 = 0
        max_version: Int16 = 0

    @struct
    class FinalizedFeature:
        """The finalized levels of a feature in the cluster."""

        name: str = ""
        max_version_level: Int16 = 0
        min_version_level: Int16 = 0

    error_code: Int16 = 0
    api_keys: list[ApiVersion] = wire()
    throttle_time_ms: Int32 = wire(since=1)
    supported_features: list[SupportedFeature] = wire(since=3, tag=0)
    """KIP-584."""
    finalized_features_epoch: Int64 = wire(since=3, tag=1, default=-1)
    """-1: unknown."""
    finalized_features: list[FinalizedFeature] = wire(since=3, tag=2)
    zk_migration_ready: bool = wire(since=3, tag=3)
    """KIP-866; always false now."""
