"""The image: what is in it, how it starts, and what health checks find. Its steps run as processes."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from .conftest import Start
from .containerfile import Container, Image

pytestmark = pytest.mark.long

SERVER = ("--bootstrap-server", "localhost:9092")
TOOLS = (
    "kafka-topics",
    "kafka-console-producer",
    "kafka-console-consumer",
    "kafka-consumer-groups",
    "kafka-get-offsets",
    "kafka-configs",
    "kafka-acls",
    "kafka-delete-records",
    "kafka-metadata-quorum",
    "kafka-producer-perf-test",
    "kafka-run-class",
    "kafka-broker-api-versions",
    "kafka-storage",
    "kafka-log-dirs",
    "kafka-dump-log",
    "kafka-server-start",
    "kafka-server-stop",
)
PATHS = (
    "/etc/kafka/docker/run",
    "/etc/confluent/docker/run",
    "/etc/confluent/docker/bash-config",
    "/etc/confluent/docker/configure",
    "/etc/confluent/docker/ensure",
    "/etc/confluent/docker/launch",
    "/etc/kafka/secrets",
    "/mnt/shared/config",
    "/var/lib/kafka/data",
    "/bin/sh",
    "/bin/bash",
)
HEALTH_CHECKS = (
    "kafka-topics --bootstrap-server localhost:9092 --list",
    "kafka-topics.sh --bootstrap-server localhost:9092 --list",
    "/opt/kafka/bin/kafka-topics.sh --bootstrap-server localhost:9092 --list || exit 1",
    "/opt/bitnami/kafka/bin/kafka-topics.sh --list --bootstrap-server localhost:9092",
    "/opt/kafka/bin/kafka-broker-api-versions.sh --bootstrap-server localhost:9092 >/dev/null 2>&1",
    "kafka-broker-api-versions --bootstrap-server=localhost:9092",
    "/opt/kafka/bin/kafka-cluster.sh cluster-id --bootstrap-server localhost:9092 || exit 1",
    "kafka-topics --bootstrap-server localhost:9092 --describe --unavailable-partitions",
    "kafka-consumer-groups.sh --bootstrap-server localhost:9092 --list",
    "kafka-configs --bootstrap-server localhost:9092 --entity-type brokers --entity-name 1 --describe",
    "cub kafka-ready -b localhost:9092 1 20",
    "nc -z localhost 9092 || exit -1",
    "nc -vz localhost 9092",
    "bash -c 'echo > /dev/tcp/localhost/9092'",
    "kbroker health",
)
"""As compose files for apache/kafka, bitnami/kafka and confluentinc/cp-kafka have them."""


def said(container: Container, *command: str, stdin: str = "") -> str:
    """What a command in a container prints. Fails when the command does."""
    done = container.run(*command, stdin=stdin)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_it_starts_by_itself_and_everything_is_at_its_place(start: Start, image: Image) -> None:
    container = start()
    assert image.command == ["/etc/kafka/docker/run"]
    assert image.exposed == ["9092", "8080", "8081"]
    assert image.volumes == ["/var/lib/kafka/data"]
    assert image.user != "root"
    for path in PATHS:
        said(container, "test", "-e", path)
    for tool in TOOLS:
        for name in (tool, f"{tool}.sh", f"/opt/kafka/bin/{tool}.sh"):
            said(container, "sh", "-c", f"command -v {name}")
    log = container.logged()
    assert "[KafkaRaftServer nodeId=1] Kafka Server started" in log
    assert "[BrokerServer id=1] Transitioning from RECOVERY to RUNNING" in log
    assert "cluster 5L6g3nShT-eMCtK--X86sw" in log
    assert "advertised: localhost:9092" in log
    assert "meta.properties" in said(container, "ls", "/var/lib/kafka/data")
    said(container, *image.health)
    assert container.stop() == 0


def test_health_checks_of_compose_files_pass_and_fail_in_time(start: Start) -> None:
    container = start()
    failed = {}
    for check in HEALTH_CHECKS:
        done = container.run("sh", "-c", check)
        if done.returncode:
            failed[check] = done.stdout + done.stderr
    assert not failed
    nobody = [check.replace("9092", "9999") for check in HEALTH_CHECKS if "9092" in check]
    statuses = {
        check: container.run("sh", "-c", check.replace("1 20", "1 0")).returncode
        for check in nobody
    }
    assert all(statuses.values()), statuses
    assert container.run("/etc/kafka/docker/healthy").returncode == 0


def test_nothing_is_left_of_a_container_that_is_killed(start: Start) -> None:
    """Also when its process belongs to another user than the one that began it."""
    container = start()
    broker = Path("/proc", container.first_process())
    container.kill()
    for _ in range(500):
        if not broker.exists():
            return
        time.sleep(0.01)
    raise AssertionError((broker / "status").read_text())


def test_records_go_in_and_out_by_kafkas_scripts(start: Start) -> None:
    container = start(environment={"KAFKA_CREATE_TOPICS": "t1:3:1,t2:1:1:compact"})
    topics = said(container, "kafka-topics", *SERVER, "--describe")
    assert "Topic: t1\t" in topics
    assert "PartitionCount: 3" in topics
    assert "cleanup.policy=compact" in topics
    said(container, "kafka-console-producer", *SERVER, "--topic", "lines", stdin="one\ntwo\n")
    read = ("--topic", "lines", "--from-beginning", "--max-messages", "2", "--group", "g")
    assert said(container, "kafka-console-consumer.sh", *SERVER, *read) == "one\ntwo\n"
    described = said(container, "kafka-consumer-groups", *SERVER, "--describe", "--group", "g")
    assert described.split()[9:15] == ["g", "lines", "0", "2", "2", "0"]


def test_the_environment_goes_before_a_mounted_file(start: Start) -> None:
    container = start(
        environment={
            "KAFKA_NUM_PARTITIONS": "5",
            "KAFKA_CFG_LOG_RETENTION_HOURS": "7",
            "CLUSTER_ID": "4L6g3nShT-eMCtK--X86sw",
            "KAFKA_HEAP_OPTS": "-Xmx1g",
            "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://broker:9092",
            "ALLOW_PLAINTEXT_LISTENER": "yes",
        },
        files={
            "/mnt/shared/config/server.properties": "num.partitions=2\nlog.retention.ms=77777\n"
            "log.dirs=/tmp/kraft-combined-logs\n"
        },
    )
    settings = said(
        container, "kafka-configs", *SERVER, "--describe", "--all", "--broker", "1"
    ).splitlines()
    values = dict(line.split()[0].split("=", 1) for line in settings[1:])
    assert values["num.partitions"] == "5"
    assert values["log.retention.ms"] == "77777"
    assert values["log.retention.hours"] == "7"
    assert "meta.properties" in said(container, "ls", "/tmp/kraft-combined-logs")
    log = container.logged()
    assert "cluster 4L6g3nShT-eMCtK--X86sw" in log
    assert "advertised: broker:9092" in log
    assert "heap" not in log


def test_listeners_of_a_compose_file_are_taken_as_they_are(start: Start) -> None:
    """One for containers, one for the host, and one of a controller, which there is not."""
    container = start(
        environment={
            "KAFKA_NODE_ID": "7",
            "KAFKA_PROCESS_ROLES": "broker,controller",
            "KAFKA_LISTENERS": "PLAINTEXT://:29092,CONTROLLER://:9093,PLAINTEXT_HOST://0.0.0.0:9092",
            "KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://broker:29092,PLAINTEXT_HOST://localhost:9092",
            "KAFKA_LISTENER_SECURITY_PROTOCOL_MAP": (
                "CONTROLLER:PLAINTEXT,PLAINTEXT:PLAINTEXT,PLAINTEXT_HOST:PLAINTEXT"
            ),
            "KAFKA_CONTROLLER_LISTENER_NAMES": "CONTROLLER",
            "KAFKA_CONTROLLER_QUORUM_VOTERS": "7@broker:9093",
            "KAFKA_INTER_BROKER_LISTENER_NAME": "PLAINTEXT",
            "KAFKA_OFFSETS_TOPIC_REPLICATION_FACTOR": "1",
            "KAFKA_GROUP_INITIAL_REBALANCE_DELAY_MS": "0",
            "KAFKA_TRANSACTION_STATE_LOG_MIN_ISR": "1",
            "KAFKA_TRANSACTION_STATE_LOG_REPLICATION_FACTOR": "1",
        }
    )
    for address in ("broker:29092", "localhost:9092"):
        versions = said(container, "kafka-broker-api-versions", "--bootstrap-server", address)
        assert versions.startswith(f"{address} (id: 7 ")
    said(container, "/etc/kafka/docker/healthy")
    assert "[KafkaServer id=7] started" in container.logged()


def test_the_machine_has_a_port_of_its_own_beside_that_of_containers(start: Start) -> None:
    container = start(environment={"KBROKER_HOST_PORT": "29092"})
    for address in ("localhost:9092", "localhost:29092"):
        versions = said(container, "kafka-broker-api-versions", "--bootstrap-server", address)
        assert versions.startswith((f"{address} (id: 1 ", "127.0.0.1:9092 (id: 1 "))
    assert "also advertised" not in container.logged()


def test_console_and_registry_are_reached_from_outside(start: Start) -> None:
    container = start(environment={"KBROKER_HTTP_PORT": "8080", "KBROKER_REGISTRY_PORT": "8081"})
    fetch = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read())"
    # An address of the machine that is not the one of localhost.
    assert "<html" in said(container, "python3", "-c", fetch, "http://127.0.0.2:8080/console/")
    assert said(container, "python3", "-c", fetch, "http://127.0.0.2:8081/subjects") == "b'[]'\n"


def test_it_starts_as_confluents_images_do(start: Start) -> None:
    container = start(
        ["/etc/confluent/docker/run"],
        {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:9092", "KAFKA_BROKER_ID": "1"},
    )
    assert said(container, "kafka-topics", *SERVER, "--list") == ""
    assert container.stop() == 0


def test_a_start_that_is_refused_says_why_and_ends(start: Start) -> None:
    container = start(environment={"KAFKA_LISTENERS": "WHAT://:9092"}, until=None)
    assert container.process.wait(timeout=60) == 3
    assert "listener WHAT has no entry in listener.security.protocol.map" in container.logged()
