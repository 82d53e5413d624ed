"""The responses of one node that are encoded once for many clients."""

from __future__ import annotations

from kbroker.cluster import Cluster

from .api_versions_cache import ApiVersionsCache
from .shared_responses import SharedResponses


class ResponseCaches:
    """Responses that many clients get.

    Attributes:
        api_versions: ApiVersions responses.
        all_topics: Responses to Metadata requests for all topics, until the metadata changes.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.api_versions = ApiVersionsCache()
        self.all_topics = SharedResponses(lambda: cluster.changes_seen)
