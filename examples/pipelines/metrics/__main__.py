"""Aggregate metrics in windows of three widths, and compare them with plain Python.

Usage: kbroker run -- python -m metrics
"""

from __future__ import annotations

import argparse
import sys

import program
import topics

from kbroker.spark import session

from . import METRICS, WIDTHS, generate, pipeline, truth


def main(options: argparse.Namespace) -> int:
    topics.create(options.bootstrap, [METRICS])
    topics.create(options.bootstrap, WIDTHS, compacted=True)
    made = generate.readings(options.seed, options.rows)
    topics.send(options.bootstrap, METRICS, generate.records(made))
    spark = session("metrics", quick=True)
    with program.timed("metrics -> windows", len(made)):
        program.drain(
            pipeline.start(
                spark,
                options.bootstrap,
                options.directory,
                source=options.format,
                batch_rows=options.rows // 3,
            )
        )
    found = {topic: topics.latest(options.bootstrap, topic) for topic in WIDTHS}
    return program.verdict(found, truth.windows(made))


if __name__ == "__main__":
    sys.exit(main(program.arguments(__doc__, rows=100_000)))
