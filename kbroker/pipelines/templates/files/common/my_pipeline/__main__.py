"""Run the pipeline: python -m my_pipeline"""

from __future__ import annotations

import logging
import signal
import sys
import time

from pyspark.errors import StreamingQueryException
from pyspark.sql import SparkSession

from my_pipeline.conf import Conf
from my_pipeline.pipeline import build
from my_pipeline.watch import Watch

PAUSE_SECONDS = 5
FAILURES_MAX = 20
"""So many starts in a row may fail before their first batch."""

log = logging.getLogger("my_pipeline")


def main() -> int:
    """Run until the end: a signal, or with available-now the last record of the topic."""
    conf = Conf.load()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    spark = session_of(conf)
    try:
        spark.streams.addListener(Watch())
        return run(spark, conf)
    finally:
        spark.stop()


def session_of(conf: Conf) -> SparkSession:
    """The session of spark-submit, or one of our own, with the connector in it."""
    if conf.master == "submitted":
        return SparkSession.builder.getOrCreate()
    from kbroker.spark import session

    return session("my_pipeline", master=conf.master, connector=conf.format == "kafka")


def run(spark: SparkSession, conf: Conf) -> int:
    """Run the query; when it fails, while Kafka is away for instance, go on at its checkpoint."""
    failures = 0
    while failures < FAILURES_MAX:
        query = build(spark, conf)
        try:
            query.awaitTermination()
            return 0
        except StreamingQueryException as error:
            failures = 0 if query.lastProgress else failures + 1
            log.error("failed, again in %d s: %s", PAUSE_SECONDS, str(error).partition("\n")[0])
            time.sleep(PAUSE_SECONDS)
        finally:
            query.stop()
    return 1


if __name__ == "__main__":
    sys.exit(main())
