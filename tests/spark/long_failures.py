"""Failures that need their own Spark: wrong jars or wrong Java. `make soak PART=doctor` runs them.

Each test starts a plain session in its own process.
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from kbroker.spark import jars, java
from kbroker.spark.connector import installed
from kbroker.spark.failures import explain
from kbroker.testing import LocalBroker

PROVOKED = {
    *("no pool", "no token provider", "wrong Scala", "wrong Spark", "Java too new"),
    *("pandas 3", "loopback", "topic made", "proxy"),
}

JOB = """
import sys
from pyspark.sql import SparkSession
bootstrap, jars = sys.argv[1:]
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
spark = spark.config("spark.jars", jars).getOrCreate() if jars else spark.getOrCreate()
options = {"kafka.bootstrap.servers": bootstrap}
rows = spark.range(9).selectExpr("cast(id as string) as value")
rows.write.format("kafka").options(**options, topic="made").save()
print(spark.read.format("kafka").options(**options, subscribe="made").load().count())
"""


def run(*command: str, **variables: str) -> str:
    """Run a process and return its standard error, followed by its output."""
    environ = {name: value for name, value in os.environ.items() if name != "SPARK_LOCAL_IP"}
    done = subprocess.run(
        [sys.executable, *command],
        env=environ | {"PYSPARK_PYTHON": sys.executable} | variables,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return done.stderr + done.stdout


def job(*files: Path, **variables: str) -> str:
    with LocalBroker() as broker:
        return run("-c", JOB, broker.bootstrap_servers, ",".join(map(str, files)), **variables)


def serious(text: str) -> list[str]:
    return [each.failure.name for each in explain(text) if not each.failure.harmless]


@pytest.fixture(scope="module")
def right_jars(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The four jars, newly downloaded, by artifact."""
    directory = tmp_path_factory.mktemp("right_jars")
    jars.gather(installed(), directory)
    return {jar.artifact: path for path in directory.iterdir() if (jar := jars.parse(path.name))}


def download(artifact: str, version: str, directory: Path) -> list[Path]:
    """Download a jar of another Spark version."""
    jars.fetcher(installed())(artifact, version, directory)
    return sorted(directory.glob("*.jar"))


def test_matching_jars_cause_no_failure(right_jars: dict[str, Path]) -> None:
    output = job(*right_jars.values())
    assert serious(output) == []
    assert output.endswith("9\n")


@pytest.mark.parametrize(
    ("missing", "name"), [("commons-pool2", "no pool"), (jars.PROVIDER, "no token provider")]
)
def test_missing_jar_is_diagnosed(right_jars: dict[str, Path], missing: str, name: str) -> None:
    output = job(*(path for artifact, path in right_jars.items() if artifact != missing))
    assert serious(output)[0] == name


@pytest.mark.parametrize(("version", "name"), [("3.5.1", "wrong Scala"), ("2.4.8", "wrong Spark")])
def test_connector_for_other_scala_is_diagnosed(version: str, name: str, tmp_path: Path) -> None:
    files = download(f"{jars.CONNECTOR}_2.12", version, tmp_path)
    if version > "3":
        files = download(f"{jars.PROVIDER}_2.12", version, tmp_path)
    assert serious(job(*files))[0] == name


def test_spark_with_other_scala_library_is_diagnosed(tmp_path: Path) -> None:
    """This Spark's own jars run with the library of Scala 2.12.

    The class that is missing first varies (``scala/$less$colon$less`` is frequent).
    """
    pom = tmp_path / "pom.xml"
    pom.write_text(jars.pom("x", "1").replace("org.apache.spark", "org.scala-lang").replace(
        "<artifactId>x</artifactId>\n    <version>1", "<artifactId>scala-library</artifactId>\n"
        "    <version>2.12.18"))  # fmt: skip
    subprocess.run(
        ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies",
         f"-DoutputDirectory={tmp_path}/scala"], check=True,
    )  # fmt: skip
    (scala,) = (tmp_path / "scala").glob("scala-library-2.12*.jar")
    others = ":".join(
        str(path)
        for path in (installed().home / "jars").glob("*.jar")
        if not path.name.startswith("scala-library")
    )
    found = java.default_java()
    assert found is not None
    done = subprocess.run(
        [str(found.program), "-cp", f"{scala}:{others}", "org.apache.spark.deploy.SparkSubmit"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert serious(done.stderr) == ["wrong Scala"]


def test_connector_for_other_spark_4_is_diagnosed(tmp_path: Path) -> None:
    version = "4.0.0" if not installed().version.startswith("4.0.") else "4.2.0"
    files = download(f"{jars.CONNECTOR}_2.13", version, tmp_path)
    files = download(f"{jars.PROVIDER}_2.13", "4.0.0", tmp_path)
    assert serious(job(*files))[0] == "wrong Spark"


def test_unsupported_java_is_diagnosed(right_jars: dict[str, Path]) -> None:
    version = installed().version
    wrong = [each for each in java.all_installed() if not java.is_supported(version, each.major)]
    if not wrong:
        pytest.skip(f"no Java is installed that Spark {version} does not run on")
    home = str(wrong[0].program.parent.parent)
    assert serious(job(*right_jars.values(), JAVA_HOME=home)) == ["Java too new"]
    output = run("-c", "from kbroker.spark import session; session()", JAVA_HOME=home)
    assert f"ConnectorError: Spark {version} does not run on Java {wrong[0].major}" in output


def test_harmless_messages_of_working_session_are_known(right_jars: dict[str, Path]) -> None:
    """Spark prints warnings about settings, and the new topic is unknown at first."""
    with LocalBroker() as broker:
        broker.fault("Metadata", topic="made", error="UNKNOWN_TOPIC_OR_PARTITION").times(1)
        output = run("-c", JOB, broker.bootstrap_servers, ",".join(map(str, right_jars.values())))
    found = {each.failure.name for each in explain(output)}
    name = socket.gethostname()
    on_loopback = {"loopback"} if socket.gethostbyname(name).startswith("127.") else set()
    assert found == {"native Hadoop", "topic made"} | on_loopback


def test_unresolvable_repository_is_diagnosed() -> None:
    """Ivy reports the host first, and then that the connector was not found."""
    name = installed().package.rpartition(":")[0] + ":0.0.1"
    code = (
        "from pyspark.sql import SparkSession; "
        f"builder = SparkSession.builder.config('spark.jars.packages', {name!r}); "
        "builder.config('spark.jars.repositories', 'http://nowhere.invalid/').getOrCreate()"
    )
    found = {each.failure.name for each in explain(run("-c", code))}
    assert found - {"loopback", "native Hadoop"} == {"unresolved", "proxy"}


def test_unsupported_pandas_is_diagnosed(tmp_path: Path) -> None:
    pip = [sys.executable, "-m", "pip", "install", "-q", "--target", str(tmp_path), "pandas>=3"]
    subprocess.run(pip, check=True)
    path = f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"
    code = "from kbroker.spark import session; session(connector=False).range(1).toPandas()"
    found = [each.failure.name for each in explain(run("-c", code, PYTHONPATH=path))]
    if installed().version.startswith("4.0."):
        # PySpark 4.0 does not warn about it
        assert found == []
    else:
        assert found == ["pandas 3"]


@pytest.mark.parametrize("tool", ["mvn", "java"])
def test_jars_are_downloaded_by_maven_or_ivy(
    tool: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("java", "sh", "bash", "dirname", "uname", "tr", "cat", "basename", "expr", "ls"):
        if found := shutil.which(name):
            (programs / name).symlink_to(found)
    if tool == "mvn":
        maven = shutil.which("mvn")
        assert maven is not None
        (programs / "mvn").symlink_to(maven)
    monkeypatch.setenv("PATH", str(programs))
    notes = jars.gather(installed(), tmp_path / "jars")
    names = [path.name for path in (tmp_path / "jars").iterdir()]
    assert len(names) == 4
    assert [problem for problem in jars.problems(names, installed()) if not problem.harmless] == []
    assert all("took" in note for note in notes)
