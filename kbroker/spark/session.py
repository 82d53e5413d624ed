"""A Spark session that talks to Kafka, on the first try."""

from __future__ import annotations

import atexit
import functools
import os
import pkgutil
import re
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from . import java
from .connector import (
    CONNECTOR,
    ConnectorError,
    NoConnectorError,
    connector_settings,
    installed,
)
from .failures import UNRESOLVED, explain

if TYPE_CHECKING:
    from pyspark import SparkConf
    from pyspark.sql import SparkSession

_LOG4J = Path(__file__).with_name("log4j2.properties")
_FOUND = "pyspark_kbroker"
"""The package by which PySpark finds the source."""
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
_SAID_BYTES_MAX = 1024 * 1024
SAID_LINES_MAX = 20
"""Lines of the JVM's output in the error when Spark does not start."""
_MISSING = re.compile(r":: (\S+)#(\S+);(\S+): not found")
"""A package that Ivy did not find: organisation, name and version."""


def session(
    app_name: str = "kbroker",
    *,
    master: str = "local[2]",
    connector: bool = True,
    quick: bool = False,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a Spark session with the Kafka connector of the installed PySpark.

    It is quiet (errors only), its time zone is UTC, its workers run this interpreter, and it opens
    local interfaces only. The connector's jars come from the directory that KBROKER_SPARK_JARS names, or
    else by their name from the Java registry.

    Parameters: `master` is Spark's; without `connector` no jar is asked for, which is enough for
    ``format("kbroker")``; `quick` lets the JVM compile in a hurry, so that a job of seconds is done in
    half of the time and one of many minutes takes longer; `settings` are Spark settings that win
    over those made here. Java options, jars and packages are added to those made here.

    Resource handling: stop it with ``stop()``. When the process has a session already, Spark returns
    that one. What it keeps in the temporary directory goes when the process ends.

    Raises:
        NoConnectorError: no registry delivers the connector's jars.
        ConnectorError: PySpark or Java is missing or does not fit, or KBROKER_SPARK_JARS is wrong;
            the message names the next action.
    """
    own = dict(settings or {})
    # The JVM's own errors go to standard output by default, where nobody reads them.
    java_options = ["-XX:+DisplayVMOutputToStderr", "-XX:+UseSerialGC"]
    java_options.append(f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}")
    java_options += ["-XX:TieredStopAtLevel=1"] if quick else []
    java_options += [own.pop(_JAVA_OPTIONS)] if _JAVA_OPTIONS in own else []
    chosen = _quiet() | own | (_joined(connector_settings(), own) if connector else {})
    chosen[_JAVA_OPTIONS] = " ".join(java_options)
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    os.environ["SPARK_HOME"] = str(installed().home)
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")

    from pyspark import SparkConf
    from pyspark.sql import SparkSession

    _start_java(SparkConf().setMaster(master).setAppName(app_name).setAll(list(chosen.items())))
    builder = SparkSession.builder.master(master).appName(app_name)
    for name, value in chosen.items():
        builder = builder.config(name, value)
    running = builder.getOrCreate()
    if not _is_found():
        from .source.data_source import KBrokerSource

        running.dataSource.register(KBrokerSource)
    return running


def _joined(connector: Mapping[str, str], own: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that bring the connector and the user's own jars and packages.

    A connector among the user's packages takes the place of the one chosen here.
    """
    joined = {}
    for name, value in connector.items():
        given = [each.strip() for each in own.get(name, "").split(",") if each.strip()]
        has_connector = any(CONNECTOR in each for each in given)
        joined[name] = ",".join(given if has_connector else [value, *given])
    return joined


def _is_found() -> bool:
    """Whether PySpark finds the source by itself; PySpark 4.0 refuses to be told of it then.

    It looks for packages on the path; after an editable install there is none.
    """
    return any(each.name == _FOUND for each in pkgutil.iter_modules())


def _quiet() -> dict[str, str]:
    """Local, quiet and in UTC."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        # Before PySpark 4.2, availableNow looks for new records after an unfinished batch too.
        "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
        "spark.sql.warehouse.dir": str(_warehouse()),
    }


@functools.cache
def _warehouse() -> Path:
    """Where tables without a place go: a directory that ends with the process."""
    directory = Path(tempfile.mkdtemp(prefix="kbroker-spark-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _start_java(conf: SparkConf) -> None:
    """Start Spark's JVM and context, unless the process has them.

    What the JVM says until then is shown only when it does not come up: Ivy's report and the JVM's
    warning about a module of its own are no news.

    Raises:
        ConnectorError: it does not come up.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    said = _Said()
    try:
        gateway = launch_gateway(conf, popen_kwargs={"stderr": said.descriptor})
        SparkContext(conf=conf, gateway=gateway)
    except Exception as error:
        raise _why(said.text(), error) from error
    said.pass_on()


def _why(said: str, error: Exception) -> ConnectorError:
    """Why Spark does not start, and what to do."""
    java.suiting(installed().version)
    text = f"{said}\n{error}"
    missing = sorted(set(_MISSING.findall(text)))
    lines = [line for line in text.splitlines() if line.strip()][-SAID_LINES_MAX:]
    output = "\n".join(["Spark says:", *lines])
    for found in explain(text):
        if not found.failure.harmless:
            advice = f"{found.failure.cause} {found.failure.action}"
            if found.failure.name != UNRESOLVED:
                return ConnectorError(f"Spark does not start. {advice}\n{output}")
            packages = [":".join(each) for each in missing]
            if packages and not any(CONNECTOR in each for each in packages):
                return ConnectorError(
                    f"Spark does not start: no registry has {', '.join(packages)}; check the names "
                    f"and versions in spark.jars.packages\n{output}"
                )
            named = f" Not found: {', '.join(packages)}." if packages else ""
            return NoConnectorError(f"Spark does not start. {advice}{named}\n{output}")
    return ConnectorError(f"Spark does not start. {output}")


class _Said:
    """What the JVM writes to its standard error: kept while it starts, then passed on."""

    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe()
        self._kept = bytearray()
        self._passing = False
        self._relay = threading.Thread(target=self._run, daemon=True)
        self._relay.start()

    def pass_on(self) -> None:
        """The JVM is up: from now on what it writes is this process's."""
        self._passing = True
        os.close(self.descriptor)

    def text(self) -> str:
        """All that has been written; the JVM is gone or idle."""
        os.close(self.descriptor)
        self._relay.join(timeout=1)
        return self._kept.decode(errors="replace")

    def _run(self) -> None:
        while chunk := os.read(self._read, 65536):
            if self._passing:
                os.write(2, chunk)
            else:
                self._kept += chunk[: _SAID_BYTES_MAX - len(self._kept)]
        os.close(self._read)
