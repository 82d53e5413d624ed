"""PySpark finds the format by the package that the wheel has for it, when it looks for such."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
SECONDS = 180

LOOK_UP = """
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
    """What a program prints where the package is installed as a wheel does it.

    tests/test_layout.py compares that with what a built one has.
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


def test_the_package_that_pyspark_looks_for(tmp_path: Path) -> None:
    assert run(LOOK_UP, tmp_path) == "[('pyspark_kbroker', 'kbroker', True)]"


def test_a_session_where_pyspark_finds_it_by_itself(tmp_path: Path) -> None:
    """PySpark 4.0 does not let it be registered once more."""
    assert run(SESSION, tmp_path) == "key"
