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


def main(options: argparse.Namespace) -> int:
    topics.create(options.bootstrap, [LOGS])
    topics.create(options.bootstrap, [BAD, ERRORS], compacted=True)
    made = generate.entries(options.seed, options.rows)
    topics.send(options.bootstrap, LOGS, ship.records(generate.log_files(made)))
    spark = session("logs", quick=True)
    start = partial(
        pipeline.start,
        spark,
        options.bootstrap,
        options.directory,
        source=options.format,
        batch_rows=options.rows // 3,
    )
    with program.timed("logs -> error rates", len(made)):
        program.drain(start())
    directory = options.directory / "lake"
    with program.timed("logs -> lake", len(made)):
        program.drain([lake.archive(spark, options.bootstrap, directory, source=options.format)])
    return program.verdict(
        {
            ERRORS: topics.latest(options.bootstrap, ERRORS),
            BAD: bad_entries(options.bootstrap),
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
