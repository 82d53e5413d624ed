"""What the programs have in common: arguments, and the comparison with plain Python at the end."""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pyspark.sql.streaming import StreamingQuery


def arguments(description: str | None, *, rows: int) -> argparse.Namespace:
    """Read the command line: `bootstrap`, `rows`, `seed`, `format` and `directory`."""
    first_line = (description or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=first_line)
    address = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    parser.add_argument(
        "--bootstrap",
        default=address,
        required=address is None,
        metavar="HOST:PORT",
        help="a Kafka; `kbroker run -- python -m ...` starts one and names it",
    )
    parser.add_argument("--rows", type=int, default=rows, help=f"how many; {rows} by default")
    parser.add_argument("--seed", type=int, default=13, help="another seed makes other data")
    parser.add_argument(
        "--format", default="kafka", choices=("kafka", "kbroker"), help="Spark's source"
    )
    parser.add_argument(
        "--directory", type=Path, help="for checkpoints; a temporary one by default"
    )
    asked = parser.parse_args()
    asked.directory = asked.directory or Path(tempfile.mkdtemp(prefix="kbroker-example-"))
    return asked


@contextmanager
def timed(what: str, rows: int) -> Iterator[None]:
    """Print how long something took, and its rows per second."""
    started = time.perf_counter()
    yield
    seconds = time.perf_counter() - started
    print(f"{what}: {rows:,} rows in {seconds:.1f} s, {rows / seconds:,.0f} rows/s", flush=True)


def drain(queries: Iterable[StreamingQuery]) -> None:
    """Wait until queries have done what there was to do.

    Raises:
        StreamingQueryException: one of them failed.
        RuntimeError: one has dropped rows as late; the watermark was too narrow.
    """
    for query in queries:
        query.awaitTermination()
        operators = [one for progress in query.recentProgress for one in progress.stateOperators]
        if dropped := sum(one.numRowsDroppedByWatermark for one in operators):
            raise RuntimeError(f"{query.name} has dropped {dropped} rows as late")


def verdict(found: Mapping[str, Any], truth: Mapping[str, Any]) -> int:
    """Compare results, by name, with the truth; returns the exit status.

    Each result is a mapping from what identifies a row to the row.
    """
    status = 0
    for name, expected in truth.items():
        missing = expected.keys() - found[name].keys()
        extra = found[name].keys() - expected.keys()
        different = {
            key for key in expected.keys() & found[name].keys() if expected[key] != found[name][key]
        }
        if missing or extra or different:
            status = 1
            print(
                f"{name}: {len(missing)} missing, {len(extra)} too many, {len(different)} different, "
                f"such as {min(missing | extra | different)}"
            )
        else:
            print(f"{name}: {len(expected):,}, all as plain Python has them")
    return status
