"""The connector's four jars: named, judged, and gathered through Maven or Ivy.

PySpark brings everything else that the connector needs. Registries may lack what belongs to the
newest Spark; then the newest older version that they have is taken, and the result says so.
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
_BROUGHT = (
    "org.apache.hadoop", "org.scala-lang", "org.scala-lang.modules", "org.lz4",
    "at.yawk.lz4", "org.xerial.snappy", "com.github.luben", "org.slf4j", "com.google.code.findbugs",
)  # fmt: skip
"""Who else publishes what PySpark has itself."""
_TIMEOUT_S = 600


@dataclass(frozen=True)
class Jar:
    """What a jar's name says."""

    artifact: str
    scala: str
    """Empty when the name has none."""
    version: str


def parse(name: str) -> Jar | None:
    """One of the four jars, or None."""
    for artifact in ARTIFACTS:
        # Ivy puts the publisher before the name.
        pattern = rf"(?:[\w.-]+_)?{artifact}(?:_(\d+\.\d+))?-(\d[\w.-]*)\.jar"
        if found := re.fullmatch(pattern, name):
            return Jar(artifact, found[1] or "", found[2])
    return None


@dataclass(frozen=True)
class Fault:
    """Something about jars that is not right."""

    text: str
    harmless: bool = False


def faults(names: Iterable[str], pyspark: Installed) -> list[Fault]:
    """What is wrong with a set of jars beside this PySpark; other jars are passed over."""
    jars = [jar for name in names if (jar := parse(name))]
    return [*_missing_or_double(jars), *_misfits(jars, pyspark)]


def _missing_or_double(jars: list[Jar]) -> Iterator[Fault]:
    for artifact in ARTIFACTS:
        versions = sorted({jar.version for jar in jars if jar.artifact == artifact})
        count = sum(jar.artifact == artifact for jar in jars)
        if not count:
            yield Fault(f"{artifact} is missing")
        elif count > 1:
            yield Fault(f"{artifact} is there {count} times ({', '.join(versions)})")


def _misfits(jars: list[Jar], pyspark: Installed) -> Iterator[Fault]:
    for jar in jars:
        if jar.scala and jar.scala != pyspark.scala:
            yield Fault(f"{jar.artifact} is for Scala {jar.scala}, PySpark has {pyspark.scala}")
        elif jar.artifact in (CONNECTOR, PROVIDER) and jar.version != pyspark.version:
            # The token provider does nothing without Kerberos, and its classes have not changed.
            numbers = 1 if jar.artifact == PROVIDER else 2
            harmless = jar.version.split(".")[:numbers] == pyspark.version.split(".")[:numbers]
            yield Fault(
                f"{jar.artifact} is of Spark {jar.version}, PySpark is {pyspark.version}", harmless
            )


def candidates(version: str) -> list[str]:
    """Versions to try: this one, then the first ones of its minor version and those before it."""
    major, minor = version.split(".")[:2]
    older = [f"{major}.{number}.0" for number in range(int(minor), -1, -1)]
    return list(dict.fromkeys([version, *older]))


def gather(pyspark: Installed, directory: Path) -> list[str]:
    """Fetch the four jars into a directory; returns what is worth saying.

    Raises:
        ConnectorError: the directory has other versions, there is neither Maven nor Java, or the
            registry does not deliver.
    """
    there = sorted(path.name for path in directory.glob("*.jar") if parse(path.name))
    if there:
        _checked(pyspark, directory, there)
        return [f"{directory} has them already"]
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
        f"{artifact} {pyspark.version} is not in the registry: took {older}, the newest that it has"
        for artifact, older in found.older.items()
    ]


def _checked(pyspark: Installed, directory: Path, names: list[str]) -> None:
    serious = [fault.text for fault in faults(names, pyspark) if not fault.harmless]
    if serious:
        raise ConnectorError(
            f"{directory} has jars that do not fit ({'; '.join(serious)}): name an empty directory, or "
            "install another PySpark."
        )


class NotThereError(Exception):
    """The registry answers, but does not have this version."""


@dataclass(frozen=True)
class Registry:
    """What the Java registry has for a PySpark, as far as it has what fits or is older."""

    pyspark: Installed
    connector: str
    provider: str

    @property
    def older(self) -> dict[str, str]:
        """What it has in an older version only; else Spark can fetch the connector by its name."""
        newest = {CONNECTOR: self.connector, PROVIDER: self.provider}
        return {name: has for name, has in newest.items() if has != self.pyspark.version}

    @property
    def has_connector(self) -> bool:
        """Whether its connector works with this PySpark: that of the same minor version does."""
        return _minor(self.connector) == _minor(self.pyspark.version)

    @property
    def text(self) -> str:
        """What it lacks."""
        lacks = [f"{artifact} (but {has})" for artifact, has in self.older.items()]
        return f"the Java registry has no {self.pyspark.version} of {' and '.join(lacks)}"

    @property
    def action(self) -> str:
        """What to do about it."""
        if self.has_connector:
            return (
                "kbroker spark packages --jars-dir DIR fetches these, then export "
                f"{JARS_VARIABLE}=DIR"
            )
        return f"pip install 'pyspark=={self.connector}', or take format(\"kbroker\")"


def newest(pyspark: Installed, directory: Path) -> Registry:
    """Fetch the newest connector and token provider up to this PySpark's version into a directory.

    Raises:
        ConnectorError: there is neither Maven nor Java, or the registry does not deliver.
    """
    fetch, versions = fetcher(pyspark), candidates(pyspark.version)
    connector, provider = (
        _first(fetch, f"{artifact}_{pyspark.scala}", versions, directory)
        for artifact in (CONNECTOR, PROVIDER)
    )
    return Registry(pyspark, connector, provider)


def _minor(version: str) -> list[str]:
    return version.split(".")[:2]


def _first(fetch: Fetcher, artifact: str, versions: list[str], directory: Path) -> str:
    for version in versions:
        try:
            fetch(artifact, version, directory)
        except NotThereError:
            continue
        return version
    raise ConnectorError(
        f"The Java registry has no {artifact} of {', '.join(versions)}: install a PySpark for which "
        'it has one, or take format("kbroker").'
    )


class Fetcher:
    """Fetches an artifact and what it needs beyond PySpark into a directory."""

    def __call__(self, artifact: str, version: str, directory: Path) -> None:
        with tempfile.TemporaryDirectory() as project:
            command = self._command(artifact, version, Path(project), directory)
            try:
                done = subprocess.run(
                    command, capture_output=True, encoding="utf-8", errors="replace", check=False, timeout=_TIMEOUT_S,
                    stdin=subprocess.DEVNULL, cwd=project,
                )  # fmt: skip
            except subprocess.TimeoutExpired as error:
                raise ConnectorError(f"{command[0]} did not end in {_TIMEOUT_S} s") from error
        said = done.stdout + done.stderr
        if not done.returncode:
            return
        if self._lacks(said, artifact, version):
            raise NotThereError
        lines = [line for line in said.splitlines() if re.search("ERROR|FAILED|unresolved", line)]
        raise ConnectorError(
            f"{Path(command[0]).name} could not fetch {artifact} {version}; behind a proxy, tell "
            f"it (settings.xml for Maven, JAVA_TOOL_OPTIONS=-Dhttps.proxyHost=... for Ivy). It "
            f"says: {' '.join((lines or said.splitlines() or ['nothing'])[0].split())}"
        )

    def _command(self, artifact: str, version: str, project: Path, directory: Path) -> list[str]:
        raise NotImplementedError

    def _lacks(self, said: str, artifact: str, version: str) -> bool:
        """Whether the registry has said that it does not have the artifact itself."""
        raise NotImplementedError


class _Maven(Fetcher):
    def _command(self, artifact: str, version: str, project: Path, directory: Path) -> list[str]:
        (project / "pom.xml").write_text(pom(artifact, version), encoding="utf-8")
        return [
            "mvn", "-B", "-Dstyle.color=never", "dependency:copy-dependencies",
            f"-DoutputDirectory={directory}",
        ]  # fmt: skip

    def _lacks(self, said: str, artifact: str, version: str) -> bool:
        missing = rf"Could not find artifact \S*:{artifact}:\S*{re.escape(version)}"
        cached = rf"{artifact}:\S*{re.escape(version)}\S* was not found in"
        return re.search(f"{missing}|{cached}", said) is not None


class _Ivy(Fetcher):
    """Ivy lies among PySpark's own jars."""

    def __init__(self, java: str, ivy: Path) -> None:
        self._java, self._ivy = java, ivy

    def _command(self, artifact: str, version: str, project: Path, directory: Path) -> list[str]:
        (project / "ivy.xml").write_text(ivy_module(artifact, version), encoding="utf-8")
        return [
            self._java, "-cp", str(self._ivy), "org.apache.ivy.Main", "-ivy", "ivy.xml",
            "-types", "jar", "bundle", "-retrieve", f"{directory}/[artifact]-[revision].[ext]",
        ]  # fmt: skip

    def _lacks(self, said: str, artifact: str, version: str) -> bool:
        return f"{artifact};{version}: not found" in said


def fetcher(pyspark: Installed) -> Fetcher:
    if shutil.which("mvn"):
        return _Maven()
    ivy = next((pyspark.home / "jars").glob("ivy-*.jar"), None)
    java = shutil.which("java")
    if ivy is None or java is None:
        raise ConnectorError("Neither Maven nor Java is here to fetch jars: install a JDK 17.")
    return _Ivy(java, ivy)


def pom(artifact: str, version: str) -> str:
    """A Maven project that needs one artifact of Spark.

    The connector brings its clients along, and nothing that PySpark has; the provider nothing.
    """
    exclusions = "".join(
        f"<exclusion><groupId>{group}</groupId><artifactId>*</artifactId></exclusion>"
        for group in ((_SPARK, *_BROUGHT) if artifact.startswith(CONNECTOR) else "*")
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
    """The same for Ivy, which can exclude all of a publisher only if the artifact is not its own."""
    wanted, excludes = "master", ""
    if artifact.startswith(CONNECTOR):
        provider = artifact.replace(CONNECTOR, PROVIDER)
        wanted, excludes = "master,compile", f'<exclude org="{_SPARK}" module="{provider}"/>'
        excludes += "".join(f'<exclude org="{group}"/>' for group in _BROUGHT)
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
