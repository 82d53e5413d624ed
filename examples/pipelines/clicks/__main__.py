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


def main(asked: argparse.Namespace) -> int:
    topics.create(asked.bootstrap, [CLICKS])
    topics.create(asked.bootstrap, [SESSIONS, LATE], compacted=True)
    stream = generate.clicks(asked.seed, asked.rows)
    topics.send(asked.bootstrap, CLICKS, generate.records(stream))

    start = partial(
        pipeline.start,
        session("clicks", quick=True),
        asked.bootstrap,
        asked.directory,
        source=asked.format,
        batch_rows=asked.rows // 3,
    )
    with program.timed("clicks -> sessions", asked.rows):
        program.drain(start())
    topics.send(asked.bootstrap, CLICKS, generate.heartbeats(stream))
    program.drain(start())
    return program.verdict(
        {name: topics.latest(asked.bootstrap, name) for name in (SESSIONS, LATE)},
        {SESSIONS: truth.sessions(stream), LATE: truth.late(stream)},
    )


if __name__ == "__main__":
    sys.exit(main(program.arguments(__doc__, rows=100_000)))
