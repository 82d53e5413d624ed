"""Stands in for `test/service.py`, which kafka-python's source distribution lacks.

Its integration tests then run against a broker that is there already (KAFKA_URI).
"""


class ExternalService:
    """A broker that somebody else starts and stops."""

    def __init__(self, host: str, port: int) -> None:
        self.address = (host, port)

    def open(self) -> None:
        """Nothing to start."""

    def stop(self) -> None:
        """Nothing to stop."""

    def dump_logs(self) -> None:
        """The broker's log is elsewhere."""


class SpawnedService:
    """A broker that the tests would start themselves: those tests need a TLS or SASL listener."""

    def __init__(self, *arguments: object) -> None:
        raise NotImplementedError("kafka-python's tests run against a broker that is there already")
