"""Turn a click stream into sessions, and compare them with plain Python.

Usage: kbroker run -- python -m clicks
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import program
import topics

from kbroker.spark import session

from . import CLICKS, LATE, SESSIONS, generate, pipeline, truth


def main(options: argparse.Namespace) -> int:
    topics.create(options.bootstrap, [CLICKS])
    topics.create(options.bootstrap, [SESSIONS, LATE], compacted=True)
    stream = generate.clicks(options.seed, options.rows)
    topics.send(options.bootstrap, CLICKS, generate.records(stream))

    start = partial(
        pipeline.start,
        session("clicks", quick=True),
        options.bootstrap,
        options.directory,
        source=options.format,
        batch_rows=options.rows // 3,
    )
    with program.timed("clicks -> sessions", options.rows):
        program.drain(start())
    topics.send(options.bootstrap, CLICKS, generate.heartbeats(stream))
    program.drain(start())
    return program.verdict(
        {name: topics.latest(options.bootstrap, name) for name in (SESSIONS, LATE)},
        {SESSIONS: truth.sessions(stream), LATE: truth.late(stream)},
    )


if __name__ == "__main__":
    sys.exit(main(program.arguments(__doc__, rows=100_000)))
