"""A Kafka broker in Python: unmodified Kafka clients talk to it over the real protocol."""

__version__ = "0.1.0"
