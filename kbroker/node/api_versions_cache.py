"""Cache of encoded ApiVersions responses, which are the same for all connections."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kbroker.protocol.compile import Encoded, encode_bytes
from kbroker.protocol.schema import Message


class ApiVersionsCache:
    """The newest responses of one node, one for each version of ApiVersions.

    A response is valid while the metadata revision, the finalized features, the served APIs, and
    the existence of client metrics subscriptions are unchanged.
    """

    def __init__(self) -> None:
        self._state: tuple[int, Mapping[str, int], object, bool] | None = None
        self._encoded: dict[int, Encoded] = {}

    def get(
        self,
        version: int,
        state: tuple[int, Mapping[str, int], object, bool],
        make: Callable[[], object],
    ) -> Encoded:
        """Return the response in a version.

        Args:
            version: Version of the request.
            state: State that the response depends on: revision, finalized features, served APIs,
                and True if a client metrics subscription exists. None of them is changed in place.
            make: Creates the response if there is no valid one.
        """
        if state != self._state:
            self._state = state
            self._encoded.clear()
        encoded = self._encoded.get(version)
        if encoded is None:
            message = make()
            assert isinstance(message, Message)
            body = encode_bytes(message, version)
            encoded = self._encoded[version] = Encoded(type(message), version, body)
        return encoded
