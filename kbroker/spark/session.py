"""Spark sessions that are ready to read from and write to Kafka."""

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
# Name of the package through which PySpark discovers the data source.
_FOUND = "pyspark_kbroker"
_JAVA_OPTIONS = "spark.driver.extraJavaOptions"
# JVM output kept while Spark starts, in bytes.
_JVM_OUTPUT_BYTES_MAX = 1024 * 1024
# Lines of JVM output quoted in the error when Spark does not start.
OUTPUT_LINES_MAX = 20
# Matches a package that Ivy did not find: organisation, name and version.
_MISSING = re.compile(r":: (\S+)#(\S+);(\S+): not found")


def session(
    app_name: str = "kbroker",
    *,
    master: str = "local[2]",
    connector: bool = True,
    quick: bool = False,
    settings: Mapping[str, str] | None = None,
) -> SparkSession:
    """Start a Spark session with the Kafka connector that matches the installed PySpark.

    The session logs errors only, uses UTC, runs its workers with this interpreter, and listens on
    local interfaces only. The connector's jars come from the directory in KBROKER_SPARK_JARS if it
    is set; otherwise Spark downloads them. Stop the session with ``stop()``.

    Args:
        app_name: Spark's application name.
        master: Spark's master URL.
        connector: Load the connector jars. False is enough for ``format("kbroker")``.
        quick: Use only the JVM's fast compiler (C1): short jobs take half the time, long ones more.
        settings: Spark settings; they override the defaults of this function. Java options, jars
            and packages are added to the defaults instead.

    Returns:
        The running session. If the process already has one, Spark returns that one.

    Raises:
        NoConnectorError: No repository has the connector's jars.
        ConnectorError: PySpark or Java is missing or incompatible, or KBROKER_SPARK_JARS is
            invalid.
    """
    own = dict(settings or {})
    # By default the JVM writes its own errors to standard output, which is discarded.
    java_options = ["-XX:+DisplayVMOutputToStderr", "-XX:+UseSerialGC"]
    java_options.append(f"-Dlog4j2.configurationFile={_LOG4J.as_uri()}")
    java_options += ["-XX:TieredStopAtLevel=1"] if quick else []
    java_options += [own.pop(_JAVA_OPTIONS)] if _JAVA_OPTIONS in own else []
    chosen = (
        _default_settings()
        | own
        | (_merge_connector_settings(connector_settings(), own) if connector else {})
    )
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
    if not _is_discoverable():
        from .source.data_source import KBrokerSource

        running.dataSource.register(KBrokerSource)
    return running


def _merge_connector_settings(
    connector: Mapping[str, str], own: Mapping[str, str]
) -> dict[str, str]:
    """Return the connector's jar and package settings, extended by the user's own.

    If the user's own value contains a connector, it replaces the default connector.
    """
    joined = {}
    for name, value in connector.items():
        given = [each.strip() for each in own.get(name, "").split(",") if each.strip()]
        has_connector = any(CONNECTOR in each for each in given)
        joined[name] = ",".join(given if has_connector else [value, *given])
    return joined


def _is_discoverable() -> bool:
    """Return True if PySpark discovers the data source by itself.

    PySpark scans the import path for packages, and an editable install has none there. PySpark 4.0
    rejects the registration of a source that it has discovered.
    """
    return any(each.name == _FOUND for each in pkgutil.iter_modules())


def _default_settings() -> dict[str, str]:
    """Return the settings for a local, quiet session in UTC."""
    return {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "4",
        # Before PySpark 4.2, availableNow checks for new records also after an unfinished batch.
        "spark.sql.streaming.triggerAvailableNowWrapper.enabled": "true",
        "spark.sql.warehouse.dir": str(_warehouse()),
    }


@functools.cache
def _warehouse() -> Path:
    """Return the temporary directory for tables without a location; it is deleted at exit."""
    directory = Path(tempfile.mkdtemp(prefix="kbroker-spark-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return directory


def _start_java(conf: SparkConf) -> None:
    """Start Spark's JVM and context, unless the process already has them.

    The JVM's output is shown only if Spark does not start: it mostly consists of Ivy's report and
    warnings about the JVM's own modules.

    Raises:
        ConnectorError: The JVM or the context did not start.
    """
    from pyspark import SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None or "PYSPARK_GATEWAY_PORT" in os.environ:
        return
    output = _JvmOutput()
    try:
        gateway = launch_gateway(conf, popen_kwargs={"stderr": output.descriptor})
        SparkContext(conf=conf, gateway=gateway)
    except Exception as error:
        raise _start_error(output.text(), error) from error
    output.forward()


def _start_error(jvm_output: str, error: Exception) -> ConnectorError:
    """Return the error for a failed start, with the cause and the next action."""
    java.find_suitable(installed().version)
    text = f"{jvm_output}\n{error}"
    missing = sorted(set(_MISSING.findall(text)))
    lines = [line for line in text.splitlines() if line.strip()][-OUTPUT_LINES_MAX:]
    output = "\n".join(["Output of Spark:", *lines])
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


class _JvmOutput:
    """Standard error of the JVM: buffered while Spark starts, then forwarded to this process."""

    def __init__(self) -> None:
        self._read, self.descriptor = os.pipe()
        self._kept = bytearray()
        self._passing = False
        self._relay = threading.Thread(target=self._run, daemon=True)
        self._relay.start()

    def forward(self) -> None:
        """Forward all further output to this process's standard error."""
        self._passing = True
        os.close(self.descriptor)

    def text(self) -> str:
        """Return the buffered output; call this once, when the JVM has ended or is idle."""
        os.close(self.descriptor)
        self._relay.join(timeout=1)
        return self._kept.decode(errors="replace")

    def _run(self) -> None:
        while chunk := os.read(self._read, 65536):
            if self._passing:
                os.write(2, chunk)
            else:
                self._kept += chunk[: _JVM_OUTPUT_BYTES_MAX - len(self._kept)]
        os.close(self._read)
