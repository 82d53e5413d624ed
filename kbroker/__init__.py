"""An Apache Kafka compatible broker in Python, for unmodified Kafka clients."""

try:
    from kbroker._version import VERSION
except ModuleNotFoundError:
    # Nothing has built or installed this copy of the sources yet.
    VERSION = "0.0.0"

__version__: str = VERSION
