"""Installed as `pyspark_kbroker`: PySpark looks for packages of such names and asks for this class."""

from kbroker.spark.source.data_source import KBrokerSource as DefaultSource

__all__ = ["DefaultSource"]
