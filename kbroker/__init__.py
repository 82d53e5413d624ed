"""An Apache Kafka compatible broker in Python, for unmodified Kafka clients."""

__version__ = "0.1.0"
