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


def main(asked: argparse.Namespace) -> int:
    topics.create(asked.bootstrap, [METRICS])
    topics.create(asked.bootstrap, WIDTHS, compacted=True)
    made = generate.readings(asked.seed, asked.rows)
    topics.send(asked.bootstrap, METRICS, generate.records(made))
    spark = session("metrics", quick=True)
    with program.timed("metrics -> windows", len(made)):
        program.drain(
            pipeline.start(
                spark,
                asked.bootstrap,
                asked.directory,
                source=asked.format,
                batch_rows=asked.rows // 3,
            )
        )
    found = {topic: topics.latest(asked.bootstrap, topic) for topic in WIDTHS}
    return program.verdict(found, truth.windows(made))


if __name__ == "__main__":
    sys.exit(main(program.arguments(__doc__, rows=100_000)))
