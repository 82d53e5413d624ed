"""``format("kbroker")``: a Spark source and sink for Kafka in pure Python, without a connector jar.

It uses PySpark's Python data source API and has the columns and option names of Spark's own
connector. There are two ways to read: over the wire from any Kafka broker (confluent-kafka), and
from segment files without a broker, if the option `path` is set.

    data_source.py     entry point of the data source    reader.py        batch reads
    options.py         parsed options                    stream.py        streaming reads
    client.py          kafka.* options for librdkafka    sink.py          writes
    offsets.py         offset arithmetic                 commit.py        group commits of progress
    partitions.py      partitions and their offsets      loss.py          failOnDataLoss
    schema.py          Spark columns                     arrow.py         Arrow record batches
    wire.py            bulk consumer for one offset range
    files.py           reads from segment files
    stored.py          logs in data directories          stored_range.py  records of an offset range
    record_columns.py  columnar decoder for record batches

PySpark and pyarrow are imported by these modules. Code outside this package imports them only when
a session is created.
"""
