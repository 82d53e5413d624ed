"""PySpark discovers the data source by the package `pyspark_kbroker` of the wheel."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SECONDS = 180

DISCOVERY = """
import importlib, pkgutil
from pyspark.sql.datasource import DataSource

names = [each.name for each in pkgutil.iter_modules() if each.name.startswith("pyspark_")]
classes = [importlib.import_module(name).DefaultSource for name in names]
print([(name, each.name(), issubclass(each, DataSource)) for name, each in zip(names, classes)])
"""


SESSION = """
from kbroker.spark import session

spark = session(connector=False, quick=True)
options = {"kafka.bootstrap.servers": "127.0.0.1:1", "subscribe": "t"}
print(spark.read.format("kbroker").options(**options).load().columns[0])
spark.stop()
"""


def run(program: str, directory: Path) -> str:
    """Return the output of a program that sees the package as the wheel installs it.

    tests/test_layout.py compares this package with that of a built wheel.
    """
    shutil.copytree(ROOT / "kbroker/spark/found", directory / "pyspark_kbroker")
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(directory), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=directory,
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=SECONDS,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_package_with_discovery_prefix_contains_data_source(tmp_path: Path) -> None:
    assert run(DISCOVERY, tmp_path) == "[('pyspark_kbroker', 'kbroker', True)]"


def test_session_uses_discovered_data_source(tmp_path: Path) -> None:
    """PySpark 4.0 rejects a second registration."""
    assert run(SESSION, tmp_path) == "key"
