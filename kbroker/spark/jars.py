"""The connector's four jars: parsing, compatibility checks, and download through Maven or Ivy.

PySpark includes all other dependencies of the connector. A Maven repository may lack the jars for
the newest Spark. In this case the newest older version is downloaded, and the result says so.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from xml.sax.saxutils import escape

from .connector import JARS_VARIABLE, ConnectorError, Installed

CONNECTOR = "spark-sql-kafka-0-10"
PROVIDER = "spark-token-provider-kafka-0-10"
ARTIFACTS = (CONNECTOR, PROVIDER, "kafka-clients", "commons-pool2")
_SPARK = "org.apache.spark"
# Maven group IDs of dependencies that PySpark includes.
_PROVIDED_GROUPS = (
    "org.apache.hadoop", "org.scala-lang", "org.scala-lang.modules", "org.lz4",
    "at.yawk.lz4", "org.xerial.snappy", "com.github.luben", "org.slf4j", "com.google.code.findbugs",
)  # fmt: skip
_TIMEOUT_S = 600


@dataclass(frozen=True)
class Jar:
    """The parts of a jar's file name."""

    artifact: str
    # Scala version; empty if the name has none.
    scala: str
    version: str


def parse(name: str) -> Jar | None:
    """Parse the file name of one of the four jars; return None for other jars."""
    for artifact in ARTIFACTS:
        # Ivy puts the group ID before the name.
        pattern = rf"(?:[\w.-]+_)?{artifact}(?:_(\d+\.\d+))?-(\d[\w.-]*)\.jar"
        if found := re.fullmatch(pattern, name):
            return Jar(artifact, found[1] or "", found[2])
    return None


@dataclass(frozen=True)
class Problem:
    """A problem with a set of jars."""

    text: str
    harmless: bool = False


def problems(names: Iterable[str], pyspark: Installed) -> list[Problem]:
    """Return the problems of a set of jars with this PySpark; other jars are ignored."""
    jars = [jar for name in names if (jar := parse(name))]
    return [*_missing_or_duplicate_jars(jars), *_incompatible_jars(jars, pyspark)]


def _missing_or_duplicate_jars(jars: list[Jar]) -> Iterator[Problem]:
    for artifact in ARTIFACTS:
        versions = sorted({jar.version for jar in jars if jar.artifact == artifact})
        count = sum(jar.artifact == artifact for jar in jars)
        if not count:
            yield Problem(f"{artifact} is missing")
        elif count > 1:
            yield Problem(f"{artifact} is present {count} times ({', '.join(versions)})")


def _incompatible_jars(jars: list[Jar], pyspark: Installed) -> Iterator[Problem]:
    for jar in jars:
        if jar.scala and jar.scala != pyspark.scala:
            yield Problem(f"{jar.artifact} is for Scala {jar.scala}, PySpark has {pyspark.scala}")
        elif jar.artifact in (CONNECTOR, PROVIDER) and jar.version != pyspark.version:
            # The token provider is only used with Kerberos, and its classes have not changed.
            numbers = 1 if jar.artifact == PROVIDER else 2
            harmless = jar.version.split(".")[:numbers] == pyspark.version.split(".")[:numbers]
            yield Problem(
                f"{jar.artifact} is for Spark {jar.version}, PySpark is {pyspark.version}", harmless
            )


def candidates(version: str) -> list[str]:
    """Return the versions to try: this one, then `.0` releases in descending order."""
    major, minor = version.split(".")[:2]
    older = [f"{major}.{number}.0" for number in range(int(minor), -1, -1)]
    return list(dict.fromkeys([version, *older]))


def gather(pyspark: Installed, directory: Path) -> list[str]:
    """Download the four jars into a directory.

    Args:
        pyspark: The PySpark that the jars are for.
        directory: Target directory; created if necessary.

    Returns:
        Messages to print.

    Raises:
        ConnectorError: The directory has other versions, Maven and Java are missing, or the
            download failed.
    """
    there = sorted(path.name for path in directory.glob("*.jar") if parse(path.name))
    if there:
        _checked(pyspark, directory, there)
        return [f"{directory} already contains the jars"]
    with tempfile.TemporaryDirectory() as scratch:
        found = newest(pyspark, Path(scratch))
        if not found.has_connector:
            raise ConnectorError(f"{found.text}: {found.action}")
        directory.mkdir(parents=True, exist_ok=True)
        for path in Path(scratch).glob("*.jar"):
            if parse(path.name):
                shutil.move(path, directory / path.name)
    _checked(pyspark, directory, [path.name for path in directory.glob("*.jar")])
    return [
        f"{artifact} {pyspark.version} is not in the Maven repository: downloaded {older}, its "
        "newest older version"
        for artifact, older in found.older.items()
    ]


def _checked(pyspark: Installed, directory: Path, names: list[str]) -> None:
    serious = [problem.text for problem in problems(names, pyspark) if not problem.harmless]
    if serious:
        raise ConnectorError(
            f"{directory} contains incompatible jars ({'; '.join(serious)}): name an empty "
            "directory, or install another PySpark."
        )


class NotInRepositoryError(Exception):
    """The Maven repository does not have this version."""


@dataclass(frozen=True)
class Available:
    """The newest versions in the Maven repository that are not newer than this PySpark."""

    pyspark: Installed
    connector: str
    provider: str

    @property
    def older(self) -> dict[str, str]:
        """Artifacts that exist only in an older version; if empty, Spark can download them."""
        newest = {CONNECTOR: self.connector, PROVIDER: self.provider}
        return {name: has for name, has in newest.items() if has != self.pyspark.version}

    @property
    def has_connector(self) -> bool:
        """True if the connector works with this PySpark: both have the same minor version."""
        return _minor(self.connector) == _minor(self.pyspark.version)

    @property
    def text(self) -> str:
        """Description of the missing versions."""
        lacks = [f"{artifact} (but {has})" for artifact, has in self.older.items()]
        return (
            f"the Maven repository has no version {self.pyspark.version} of {' and '.join(lacks)}"
        )

    @property
    def action(self) -> str:
        """Next action for the missing versions."""
        if self.has_connector:
            return (
                "download these with kbroker spark packages --jars-dir DIR, then export "
                f"{JARS_VARIABLE}=DIR"
            )
        return f"pip install 'pyspark=={self.connector}', or use format(\"kbroker\")"


def newest(pyspark: Installed, directory: Path) -> Available:
    """Download the newest connector and token provider up to this PySpark's version.

    Args:
        pyspark: The PySpark that the jars are for.
        directory: Target directory.

    Returns:
        The versions found.

    Raises:
        ConnectorError: Maven and Java are missing, or the download failed.
    """
    fetch, versions = fetcher(pyspark), candidates(pyspark.version)
    connector, provider = (
        _first(fetch, f"{artifact}_{pyspark.scala}", versions, directory)
        for artifact in (CONNECTOR, PROVIDER)
    )
    return Available(pyspark, connector, provider)


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _first(fetch: Fetcher, artifact: str, versions: list[str], directory: Path) -> str:
    for version in versions:
        try:
            fetch(artifact, version, directory)
        except NotInRepositoryError:
            continue
        return version
    raise ConnectorError(
        f"The Maven repository has no {artifact} of {', '.join(versions)}: install a PySpark "
        'version for which it has one, or use format("kbroker").'
    )


class Fetcher:
    """Downloads an artifact, and its dependencies that PySpark lacks, into a directory."""

    def __call__(self, artifact: str, version: str, directory: Path) -> None:
        with tempfile.TemporaryDirectory() as project:
            command = self._command(artifact, version, Path(project), directory)
            try:
                done = subprocess.run(
                    command, capture_output=True, encoding="utf-8", errors="replace", check=False, timeout=_TIMEOUT_S,
                    stdin=subprocess.DEVNULL, cwd=project,
                )  # fmt: skip
            except subprocess.TimeoutExpired as error:
                raise ConnectorError(
                    f"{command[0]} did not finish within {_TIMEOUT_S} s"
                ) from error
        output = done.stdout + done.stderr
        if not done.returncode:
            return
        if self._lacks(output, artifact, version):
            raise NotInRepositoryError
        lines = [line for line in output.splitlines() if re.search("ERROR|FAILED|unresolved", line)]
        raise ConnectorError(
            f"{Path(command[0]).name} could not download {artifact} {version}; if you use a proxy, "
            "configure it (settings.xml for Maven, JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=... for "
            f"Ivy). Output: {' '.join((lines or output.splitlines() or ['none'])[0].split())}"
        )

    def _command(self, artifact: str, version: str, project: Path, directory: Path) -> list[str]:
        raise NotImplementedError

    def _lacks(self, output: str, artifact: str, version: str) -> bool:
        """Return True if the output says that the repository does not have the artifact itself."""
        raise NotImplementedError


class _Maven(Fetcher):
    def _command(self, artifact: str, version: str, project: Path, directory: Path) -> list[str]:
        (project / "pom.xml").write_text(pom(artifact, version), encoding="utf-8")
        return [
            "mvn", "-B", "-Dstyle.color=never", "dependency:copy-dependencies",
            f"-DoutputDirectory={directory}",
        ]  # fmt: skip

    def _lacks(self, output: str, artifact: str, version: str) -> bool:
        missing = rf"Could not find artifact \S*:{artifact}:\S*{re.escape(version)}"
        cached = rf"{artifact}:\S*{re.escape(version)}\S* was not found in"
        return re.search(f"{missing}|{cached}", output) is not None


class _Ivy(Fetcher):
    """Fetcher that uses the Ivy included in PySpark's jars."""

    def __init__(self, java: str, ivy: Path) -> None:
        self._java, self._ivy = java, ivy

    def _command(self, artifact: str, version: str, project: Path, directory: Path) -> list[str]:
        (project / "ivy.xml").write_text(ivy_module(artifact, version), encoding="utf-8")
        return [
            self._java, "-cp", str(self._ivy), "org.apache.ivy.Main", "-ivy", "ivy.xml",
            "-types", "jar", "bundle", "-retrieve", f"{directory}/[artifact]-[revision].[ext]",
        ]  # fmt: skip

    def _lacks(self, output: str, artifact: str, version: str) -> bool:
        return f"{artifact};{version}: not found" in output


def fetcher(pyspark: Installed) -> Fetcher:
    if shutil.which("mvn"):
        return _Maven()
    ivy = next((pyspark.home / "jars").glob("ivy-*.jar"), None)
    java = shutil.which("java")
    if ivy is None or java is None:
        raise ConnectorError(
            "Maven and Java are missing, jars cannot be downloaded: install a JDK 17."
        )

    return _Ivy(java, ivy)


def pom(artifact: str, version: str) -> str:
    """Return a Maven project that depends on one artifact of Spark.

    For the connector, the dependencies that PySpark includes are excluded; for the token provider,
    all.
    """
    exclusions = "".join(
        f"<exclusion><groupId>{group}</groupId><artifactId>*</artifactId></exclusion>"
        for group in ((_SPARK, *_PROVIDED_GROUPS) if artifact.startswith(CONNECTOR) else "*")
    )
    return f"""\
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>kbroker</groupId><artifactId>jars</artifactId><version>1</version>
  <packaging>pom</packaging>
  <dependencies><dependency>
    <groupId>{_SPARK}</groupId>
    <artifactId>{escape(artifact)}</artifactId>
    <version>{escape(version)}</version>
    <exclusions>{exclusions}</exclusions>
  </dependency></dependencies>
</project>
"""


def ivy_module(artifact: str, version: str) -> str:
    """Return an Ivy module that depends on one artifact of Spark.

    Ivy cannot exclude the artifact's own group, so the token provider is excluded by name.
    """
    wanted, excludes = "master", ""
    if artifact.startswith(CONNECTOR):
        provider = artifact.replace(CONNECTOR, PROVIDER)
        wanted, excludes = "master,compile", f'<exclude org="{_SPARK}" module="{provider}"/>'
        excludes += "".join(f'<exclude org="{group}"/>' for group in _PROVIDED_GROUPS)
    return f"""\
<ivy-module version="2.0">
  <info organisation="kbroker" module="jars"/>
  <configurations><conf name="default"/></configurations>
  <dependencies>
    <dependency org="{_SPARK}" name="{escape(artifact)}" rev="{escape(version)}"
                conf="default->{wanted}">{excludes}</dependency>
  </dependencies>
</ivy-module>
"""
