"""Capture a database's changes in topics, rebuild its tables from them, and compare the tables.

Usage: kbroker run -- python -m changes
"""

from __future__ import annotations

import argparse
import sys

import program

from kbroker.spark import session

from . import TABLES, capture, database, rebuild


def main(asked: argparse.Namespace) -> int:
    path = asked.directory / "flights.db"
    asked.directory.mkdir(exist_ok=True)
    capture.create_topics(asked.bootstrap)
    database.make(path)
    spark = session("changes", quick=True)
    changes = capture.capture(path, asked.bootstrap)
    for seed in (asked.seed, asked.seed + 1):
        database.change(path, seed, asked.rows // 2)
        changes += capture.capture(path, asked.bootstrap)
    with program.timed("changes -> tables", changes):
        program.drain(
            [
                rebuild.start(
                    spark, asked.bootstrap, asked.directory, source=asked.format, batch_rows=5_000
                )
            ]
        )
    truth = database.tables(path)
    found = {}
    for table in TABLES:
        kept = rebuild.kept_table(spark, asked.directory, table)
        now = rebuild.table_now(spark, asked.bootstrap, table, source=asked.format)
        found[f"{table.name}, kept up to date"] = rebuild.rows_by_key(kept, table)
        found[f"{table.name}, from the whole topic"] = rebuild.rows_by_key(now, table)
    return program.verdict(found, {name: truth[name.partition(",")[0]] for name in found})


if __name__ == "__main__":
    sys.exit(main(program.arguments(__doc__, rows=2_000)))
