"""Package installed as `pyspark_kbroker`, through which PySpark discovers the data source.

PySpark scans for packages named `pyspark_*` and registers their class `DefaultSource`.
"""

from kbroker.spark.source.data_source import KBrokerSource as DefaultSource

__all__ = ["DefaultSource"]
