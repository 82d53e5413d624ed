"""PySpark finds the format by the package that the wheel has for it, when it looks for such."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]

LOOK_UP = """
import importlib, pkgutil
from pyspark.sql.datasource import DataSource

names = [each.name for each in pkgutil.iter_modules() if each.name.startswith("pyspark_")]
classes = [importlib.import_module(name).DefaultSource for name in names]
print([(name, each.name(), issubclass(each, DataSource)) for name, each in zip(names, classes)])
"""


def test_the_package_that_pyspark_looks_for(tmp_path: Path) -> None:
    # As a wheel installs it: tests/test_layout.py compares what a built one has.
    shutil.copytree(ROOT / "kbroker/spark/found", tmp_path / "pyspark_kbroker")
    environ = os.environ | {"PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}
    done = subprocess.run(
        [sys.executable, "-c", LOOK_UP],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert done.stdout.strip() == "[('pyspark_kbroker', 'kbroker', True)]"
