"""Run the pipeline: python -m my_pipeline"""

from __future__ import annotations

import logging
import signal
import sys
import time
from threading import Event

from pyspark.sql import SparkSession

from my_pipeline.conf import Conf
from my_pipeline.pipeline import build
from my_pipeline.watch import Watch

RETRY_BACKOFF_SECONDS = 5
# Give up after FAILURES_MAX consecutive failures that each occur within QUICK_SECONDS.
QUICK_SECONDS, FAILURES_MAX = 30, 20

log = logging.getLogger("my_pipeline")


def main() -> int:
    """Run until SIGINT or SIGTERM, or with available-now until the end of the topic."""
    conf = Conf.load()
    logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)
    logging.getLogger("py4j").setLevel(logging.ERROR)
    spark = session_of(conf)
    stopping = Event()
    for each in (signal.SIGINT, signal.SIGTERM):
        signal.signal(each, lambda *_: stopping.set())
    try:
        spark.streams.addListener(Watch())
        return run(spark, conf, stopping)
    finally:
        spark.stop()


def session_of(conf: Conf) -> SparkSession:
    """Return the session of spark-submit, or a new one with the Kafka connector."""
    if conf.master == "submitted":
        return SparkSession.builder.getOrCreate()
    from kbroker.spark import session

    return session("my_pipeline", master=conf.master, connector=conf.format == "kafka")


def run(spark: SparkSession, conf: Conf, stopping: Event) -> int:
    """Run the query; if it fails, for example because Kafka is unavailable, restart it."""
    failures = 0
    while failures < FAILURES_MAX and not stopping.is_set():
        began = time.monotonic()
        try:
            query = build(spark, conf)
            while not stopping.is_set() and not query.awaitTermination(1):
                pass
            query.stop()
            return 0
        except Exception as error:  # noqa: BLE001 - a restart is always safe
            lasted = time.monotonic() - began
            failures = failures + 1 if lasted < QUICK_SECONDS else 0
            log.error("query failed, restarting in %d s: %s", RETRY_BACKOFF_SECONDS, cause(error))
            stopping.wait(RETRY_BACKOFF_SECONDS)
    return 0 if stopping.is_set() else 1


def cause(error: Exception) -> str:
    """Return the innermost cause of an error."""
    first, *others = str(error).splitlines() or [repr(error)]
    return [first, *(line for line in others if line.startswith("Caused by: "))][-1]


if __name__ == "__main__":
    sys.exit(main())
