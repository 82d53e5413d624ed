"""``format("kbroker")``: a Spark source and sink for Kafka that needs no jar.

It stands on PySpark's Python data source API and has the columns and the option names of Spark's
own connector. Two ways of reading share them: over the wire with confluent-kafka from any Kafka, and
from segment files, without a broker, when the option `path` is given.

    data_source.py  what Spark asks for first, and which of the two ways it gets
    options.py      the options, checked            client.py     kafka.* options for librdkafka
    offsets.py      offsets, shares, splits         partitions.py which there are, and their offsets
    schema.py       the columns as Spark has them   arrow.py      the columns as Arrow batches
    wire.py         records of one range, in bulk
    reader.py       batch reading                   stream.py     streaming
    sink.py         writing                        commit.py     progress in a Kafka group
    loss.py         failOnDataLoss
    files.py        segment files in the place of a cluster
    stored.py       what lies in a data directory     stored_range.py  records between two offsets
    record_columns.py  record batches, decoded into columns

PySpark and pyarrow are imported by these modules; nothing outside this package imports them before
a session is made.
"""
