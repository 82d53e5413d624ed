"""Replacement for `test/service.py`, which kafka-python's source distribution lacks.

With it, kafka-python's integration tests use an existing broker (KAFKA_URI).
"""


class ExternalService:
    """A broker that the tests neither start nor stop."""

    def __init__(self, host: str, port: int) -> None:
        self.address = (host, port)

    def open(self) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Do nothing."""

    def dump_logs(self) -> None:
        """Do nothing: the log of the broker is not available."""


class SpawnedService:
    """A broker with TLS or SASL that the tests would start themselves (not supported)."""

    def __init__(self, *arguments: object) -> None:
        raise NotImplementedError("kafka-python's tests use an existing broker")
