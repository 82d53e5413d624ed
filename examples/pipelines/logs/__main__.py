"""Parse, count and archive the logs of four services, and compare the results with plain Python.

Usage: kbroker run -- python -m logs
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from functools import partial

import program
import topics

from kbroker.spark import session

from . import BAD, ERRORS, LOGS, generate, lake, pipeline, ship, truth


def bad_entries(bootstrap: str) -> Counter[tuple[str, bytes]]:
    """Return how often each entry is in the topic of bad entries, with its reason."""
    records = topics.last_records(bootstrap, BAD).values()
    return Counter((record.headers["reason"].decode(), record.value or b"") for record in records)


def main(asked: argparse.Namespace) -> int:
    topics.create(asked.bootstrap, [LOGS])
    topics.create(asked.bootstrap, [BAD, ERRORS], compacted=True)
    made = generate.entries(asked.seed, asked.rows)
    topics.send(asked.bootstrap, LOGS, ship.records(generate.log_files(made)))
    spark = session("logs", quick=True)
    start = partial(
        pipeline.start,
        spark,
        asked.bootstrap,
        asked.directory,
        source=asked.format,
        batch_rows=asked.rows // 3,
    )
    with program.timed("logs -> error rates", len(made)):
        program.drain(start())
    directory = asked.directory / "lake"
    with program.timed("logs -> lake", len(made)):
        program.drain([lake.archive(spark, asked.bootstrap, directory, source=asked.format)])
    return program.verdict(
        {
            ERRORS: topics.latest(asked.bootstrap, ERRORS),
            BAD: bad_entries(asked.bootstrap),
            "lake": Counter(lake.search(directory)),
        },
        {
            ERRORS: truth.errors(made),
            BAD: truth.bad(made),
            "lake": Counter(entry.raw for entry in made),
        },
    )


if __name__ == "__main__":
    sys.exit(main(program.arguments(__doc__, rows=100_000)))
