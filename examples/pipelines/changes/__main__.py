"""Capture a database's changes in topics, rebuild its tables from them, and compare the tables.

Usage: kbroker run -- python -m changes
"""

from __future__ import annotations

import argparse
import sys

import program

from kbroker.spark import session

from . import TABLES, capture, database, rebuild


def main(options: argparse.Namespace) -> int:
    path = options.directory / "flights.db"
    options.directory.mkdir(exist_ok=True)
    capture.create_topics(options.bootstrap)
    database.make(path)
    spark = session("changes", quick=True)
    changes = capture.capture(path, options.bootstrap)
    for seed in (options.seed, options.seed + 1):
        database.change(path, seed, options.rows // 2)
        changes += capture.capture(path, options.bootstrap)
    with program.timed("changes -> tables", changes):
        program.drain(
            [
                rebuild.start(
                    spark,
                    options.bootstrap,
                    options.directory,
                    source=options.format,
                    batch_rows=5_000,
                )
            ]
        )
    truth = database.tables(path)
    found = {}
    for table in TABLES:
        kept = rebuild.kept_table(spark, options.directory, table)
        now = rebuild.table_now(spark, options.bootstrap, table, source=options.format)
        found[f"{table.name}, kept up to date"] = rebuild.rows_by_key(kept, table)
        found[f"{table.name}, from the whole topic"] = rebuild.rows_by_key(now, table)
    return program.verdict(found, {name: truth[name.partition(",")[0]] for name in found})


if __name__ == "__main__":
    sys.exit(main(program.arguments(__doc__, rows=2_000)))
