"""Entry point of ``format("kbroker")``: creates readers and writers from checked options."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

from .client import warn_without_effect
from .options import OptionError, SinkOptions, SourceOptions
from .schema import spark_schema

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceReader,
        DataSourceStreamReader,
        DataSourceStreamWriter,
        DataSourceWriter,
    )
    from pyspark.sql.types import StructType


class KBrokerSource(DataSource):
    """Spark data source for Kafka without a connector jar: ``spark.read.format("kbroker")``.

    It supports read, readStream, write and writeStream. Each method raises OptionError for invalid
    options.
    """

    @classmethod
    def name(cls) -> str:
        """Return the name for ``format(...)``."""
        return "kbroker"

    def schema(self) -> StructType:
        """Return the connector's columns, including `headers` if ``includeHeaders`` is set."""
        return spark_schema(SourceOptions.parse(self.options).include_headers)

    def reader(self, schema: StructType) -> DataSourceReader:
        """Return a batch reader, over the wire or from segment files."""
        options = self._source_options(schema)
        options.check_batch()
        from .reader import BatchReader

        return BatchReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        """Return a stream reader, over the wire or from segment files."""
        options = self._source_options(schema)
        options.check_stream()
        from .stream import stream_reader

        return stream_reader(options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return a batch writer."""
        from .sink import batch_writer

        if overwrite:
            raise OptionError(
                "Save mode overwrite is not allowed for Kafka: records can only be appended; use "
                "mode('append')"
            )
        return batch_writer(self._sink_options(), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        """Return a stream writer; in complete mode each batch is appended, as by the connector."""
        from .sink import stream_writer

        return stream_writer(self._sink_options(), schema)

    def _sink_options(self) -> SinkOptions:
        options = SinkOptions.parse(self.options)
        warn_without_effect(options.kafka)
        return options

    def _source_options(self, schema: StructType) -> SourceOptions:
        options = SourceOptions.parse(self.options)
        expected = spark_schema(options.include_headers)
        if schema != expected:
            raise OptionError(
                "Kafka records have a fixed schema and cannot be read with a custom one; remove "
                f"schema(...). The columns are {expected.simpleString()}"
            )
        warn_without_effect(options.kafka)
        return options
