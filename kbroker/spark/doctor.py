"""Checks of the environment that Spark needs for Kafka; each result names the next action."""

from __future__ import annotations

import importlib.metadata
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from . import failures, jars, java
from .connector import JARS_VARIABLE, ConnectorError, Installed, installed, local_jars

_PROXY_VARIABLES = ("https_proxy", "HTTPS_PROXY", "http_proxy", "HTTP_PROXY")
_VERSIONS = """
import json, sys
found = {"python": "%d.%d" % sys.version_info[:2]}
for name in ("pandas", "pyarrow"):
    try:
        found[name] = __import__(name).__version__
    except ImportError:
        found[name] = None
print(json.dumps(found))
"""


@dataclass(frozen=True)
class Result:
    """Result of a check."""

    subject: str
    text: str
    # The next action; empty if nothing is wrong.
    action: str = ""
    # True if Spark works despite the finding.
    harmless: bool = False

    @property
    def wrong(self) -> bool:
        return bool(self.action) and not self.harmless

    def __str__(self) -> str:
        mark = "WRONG" if self.wrong else "note" if self.action else "ok"
        return f"{mark:<6}{self.subject:<12}{self.text}" + (
            f"\n{'':<18}-> {self.action}" if self.action else ""
        )


def run() -> Iterator[Result]:
    """Run all checks of this environment. If PySpark is unusable, the other checks are skipped."""
    try:
        pyspark = installed()
    except ConnectorError as error:
        yield Result("PySpark", "cannot be used", str(error))
        return
    yield _spark_home(pyspark)
    yield _java(pyspark)
    yield from _jars(pyspark)
    yield from _workers(pyspark, os.environ.get("PYSPARK_PYTHON"))
    yield _proxy()
    yield _host()


def explanation(log: Iterable[str]) -> tuple[str, bool]:
    """Explain the known failures in a log.

    Args:
        log: Lines of the log.

    Returns:
        The text to print, and True if no serious failure was found.
    """
    lines = list(log)
    found = failures.explain(lines)
    if not found:
        return f"No known failure found in {len(lines)} lines.", True
    parts = [
        f"line {each.number}: {each.line[:200]}\n  {each.failure.cause}\n  -> {each.failure.action}"
        for each in found
    ]
    return "\n".join(parts), all(each.failure.harmless for each in found)


def _spark_home(pyspark: Installed) -> Result:
    home = os.environ.get("SPARK_HOME")
    if home and Path(home).resolve() != pyspark.home.resolve():
        return Result(
            "PySpark",
            f"is {pyspark.version} in {pyspark.home}, but SPARK_HOME={home}",
            "unset SPARK_HOME, or use the Python that belongs to that Spark",
        )
    return Result("PySpark", f"{pyspark.version} for Scala {pyspark.scala}")


def _java(pyspark: Installed) -> Result:
    try:
        found = java.find_suitable(pyspark.version)
    except ConnectorError as error:
        text, _, action = str(error).partition(": ")
        return Result("Java", text, action)
    return Result("Java", f"{found.major} ({found.program})")


def _jars(pyspark: Installed) -> Iterator[Result]:
    """Check the jars in KBROKER_SPARK_JARS and connector jars added to PySpark's own directory."""
    own = [path.name for path in (pyspark.home / "jars").glob("*.jar") if jars.parse(path.name)]
    try:
        local = [path.name for path in local_jars()]
    except ConnectorError as error:
        text, _, action = str(error).partition(": ")
        yield Result("Jars", text, action)
        return
    if not local and not own:
        yield _registry(pyspark)
        return
    where = " and ".join([JARS_VARIABLE] * bool(local) + [str(pyspark.home / "jars")] * bool(own))
    found = jars.problems([*local, *own], pyspark)
    for problem in found:
        yield Result(
            "Jars",
            f"{problem.text} ({where})",
            "none; an older token provider works except with Kerberos"
            if problem.harmless
            else _JARS_ACTION,
            problem.harmless,
        )
    if all(problem.harmless for problem in found):
        yield Result("Jars", f"all four are in {where}")


def _registry(pyspark: Installed) -> Result:
    """Check that Spark can download the connector by downloading it to a temporary directory."""
    try:
        with tempfile.TemporaryDirectory() as scratch:
            found = jars.newest(pyspark, Path(scratch))
    except ConnectorError as error:
        return Result("Jars", str(error), _WITHOUT_JARS)
    if found.older:
        return Result("Jars", found.text, found.action)
    return Result("Jars", f"the Maven repository has {pyspark.package}")


_WITHOUT_JARS = (
    "download them on a machine with access to a Maven repository (kbroker spark packages "
    f'--jars-dir DIR) and export {JARS_VARIABLE}=DIR, or use format("kbroker")'
)
_JARS_ACTION = (
    "download matching jars with kbroker spark packages --jars-dir NEW-DIRECTORY; remove other "
    "connector jars from PySpark's jars directory"
)


def _workers(pyspark: Installed, setting: str | None) -> Iterator[Result]:
    """Check the interpreter of the workers: PYSPARK_PYTHON, or else the first python3 on PATH."""
    program = shutil.which(setting or "python3")
    if program is None:
        yield Result("Workers", f"{setting or 'python3'} does not exist", _interpreter_action())
        return
    try:
        done = subprocess.run(
            [program, "-c", _VERSIONS],
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            check=True,
            timeout=60,
        )
        found = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        yield Result("Workers", f"{program} does not run: {error}", _interpreter_action())
        return
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    # If PYSPARK_PYTHON is not set, kbroker.spark.session sets it.
    harmless = setting is None
    if found["python"] != here:
        yield Result(
            "Workers",
            f"would run Python {found['python']} ({program}), this is {here}",
            _interpreter_action(),
            harmless,
        )
    else:
        yield Result("Workers", f"Python {found['python']} ({program})")
    for name, version in found.items():
        if name != "python":
            yield _library(pyspark, name, version, program, harmless)


def _interpreter_action() -> str:
    return f"export PYSPARK_PYTHON={sys.executable} (kbroker.spark.session sets it itself)"


def _library(
    pyspark: Installed, name: str, version: str | None, program: str, harmless: bool
) -> Result:
    oldest = _oldest(name)
    if version is None:
        action = _interpreter_action() if harmless else f"{program} -m pip install {name}"
        return Result(name, f"is not installed for the workers ({program})", action, harmless)
    if oldest and newer(oldest, version):
        action = f"{program} -m pip install '{name}>={oldest}'"
        text = f"{version} is older than {oldest}, which PySpark {pyspark.version} requires"
        return Result(name, text, action)
    if name == "pandas" and version.split(".")[0] != "2":
        text = f"{version}: PySpark warns about versions other than 2; pyspark.pandas needs 2"
        return Result(name, text, f"{program} -m pip install 'pandas<3'", harmless=True)
    return Result(name, version)


def _oldest(library: str) -> str | None:
    """Return the oldest version of a library that PySpark's package metadata requires, or None."""
    try:
        requirements = importlib.metadata.requires("pyspark") or ()
    except importlib.metadata.PackageNotFoundError:
        return None
    for wanted in requirements:
        if found := re.match(rf"{library}\s*\(?>=([\d.]+)", wanted):
            return found[1]
    return None


def newer(one: str, other: str) -> bool:
    """Return True if version `one`, such as ``2.2.0``, is newer than `other`."""

    def numbers(version: str) -> list[int]:
        return [int(part) for part in re.findall(r"\d+", version)[:3]]

    return numbers(one) > numbers(other)


def _proxy() -> Result:
    """Check that Java has proxy options if the environment sets a proxy, which Java ignores."""
    name = next((name for name in _PROXY_VARIABLES if os.environ.get(name)), None)
    java_options = " ".join(
        os.environ.get(each, "") for each in ("JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS")
    )
    if name and "proxyHost" not in java_options and not os.environ.get(JARS_VARIABLE):
        return Result(
            "Proxy",
            f"{name} is set, but Java ignores it",
            "export JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT', or use "
            "kbroker spark packages --jars-dir",
            harmless=True,
        )
    return Result("Proxy", "none, or set for Java" if name is None or java_options else "not used")


def _host() -> Result:
    """Check the driver address: that of the host name, unless SPARK_LOCAL_IP is set."""
    if address := os.environ.get("SPARK_LOCAL_IP"):
        return Result("Host", f"SPARK_LOCAL_IP={address}")
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        address = "no address"
    if address == "no address" or address.startswith("127."):
        action = "export SPARK_LOCAL_IP=127.0.0.1 (kbroker.spark.session sets it itself)"
        return Result("Host", f"{name} is {address}", action, harmless=True)
    return Result("Host", f"{name} is {address}")
