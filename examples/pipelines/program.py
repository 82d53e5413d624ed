"""Code shared by the programs: arguments, timing, and the comparison with plain Python."""

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
    """Parse the command line: `bootstrap`, `rows`, `seed`, `format` and `directory`."""
    first_line = (description or "").partition("\n")[0]
    parser = argparse.ArgumentParser(description=first_line)
    address = os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
    parser.add_argument(
        "--bootstrap",
        default=address,
        required=address is None,
        metavar="HOST:PORT",
        help="address of a Kafka broker; `kbroker run -- python -m ...` starts one",
    )
    parser.add_argument("--rows", type=int, default=rows, help=f"number of rows; {rows} by default")
    parser.add_argument("--seed", type=int, default=13, help="seed of the generated data")
    parser.add_argument(
        "--format", default="kafka", choices=("kafka", "kbroker"), help="Spark's source"
    )
    parser.add_argument(
        "--directory", type=Path, help="directory for checkpoints; a temporary one by default"
    )
    options = parser.parse_args()
    options.directory = options.directory or Path(tempfile.mkdtemp(prefix="kbroker-example-"))
    return options


@contextmanager
def timed(what: str, rows: int) -> Iterator[None]:
    """Print how long a step took, and its rows per second."""
    started = time.perf_counter()
    yield
    seconds = time.perf_counter() - started
    print(f"{what}: {rows:,} rows in {seconds:.1f} s, {rows / seconds:,.0f} rows/s", flush=True)


def drain(queries: Iterable[StreamingQuery]) -> None:
    """Wait until queries have processed all available records.

    Raises:
        StreamingQueryException: A query failed.
        RuntimeError: A query dropped rows as late, because its watermark was too narrow.
    """
    for query in queries:
        query.awaitTermination()
        operators = [one for progress in query.recentProgress for one in progress.stateOperators]
        if dropped := sum(one.numRowsDroppedByWatermark for one in operators):
            raise RuntimeError(f"{query.name} dropped {dropped} rows as late; widen its watermark")


def verdict(found: Mapping[str, Any], truth: Mapping[str, Any]) -> int:
    """Compare results with the expected ones, and return the exit status.

    Args:
        found: Actual results by name; each maps the key of a row to the row.
        truth: Expected results in the same form.

    Returns:
        0 if all results are equal, otherwise 1.
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
                f"{name}: {len(missing)} missing, {len(extra)} unexpected, {len(different)} different, "
                f"such as {min(missing | extra | different)}"
            )
        else:
            print(f"{name}: {len(expected):,}, all equal to plain Python's")
    return status
