"""The image: its content, its start, and health checks. Containers are simulated by processes."""

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
# Health checks from compose files for apache/kafka, bitnami/kafka and confluentinc/cp-kafka.
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


def output_of(container: Container, *command: str, stdin: str = "") -> str:
    """Run a command in a container and return its output. Fails if the command does."""
    done = container.run(*command, stdin=stdin)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_image_starts_without_settings_and_contains_tools(start: Start, image: Image) -> None:
    container = start()
    assert image.command == ["/etc/kafka/docker/run"]
    assert image.exposed == ["9092", "8080", "8081"]
    assert image.volumes == ["/var/lib/kafka/data"]
    assert image.user != "root"
    for path in PATHS:
        output_of(container, "test", "-e", path)
    for tool in TOOLS:
        for name in (tool, f"{tool}.sh", f"/opt/kafka/bin/{tool}.sh"):
            output_of(container, "sh", "-c", f"command -v {name}")
    log = container.log_text()
    assert "[KafkaRaftServer nodeId=1] Kafka Server started" in log
    assert "[BrokerServer id=1] Transitioning from RECOVERY to RUNNING" in log
    assert "cluster 5L6g3nShT-eMCtK--X86sw" in log
    assert "advertised: localhost:9092" in log
    assert "meta.properties" in output_of(container, "ls", "/var/lib/kafka/data")
    output_of(container, *image.health)
    assert container.stop() == 0


def test_health_checks_of_compose_files_pass_or_fail_correctly(start: Start) -> None:
    container = start()
    failed = {}
    for check in HEALTH_CHECKS:
        done = container.run("sh", "-c", check)
        if done.returncode:
            failed[check] = done.stdout + done.stderr
    assert not failed
    unreachable = [check.replace("9092", "9999") for check in HEALTH_CHECKS if "9092" in check]
    statuses = {
        check: container.run("sh", "-c", check.replace("1 20", "1 0")).returncode
        for check in unreachable
    }
    assert all(statuses.values()), statuses
    assert container.run("/etc/kafka/docker/healthy").returncode == 0


def test_killed_container_leaves_no_process(start: Start) -> None:
    """Linux would not end a process with another user ID by itself."""
    container = start()
    broker = Path("/proc", container.first_process())
    container.kill()
    for _ in range(500):
        if not broker.exists():
            return
        time.sleep(0.01)
    raise AssertionError((broker / "status").read_text())


def test_kafka_scripts_produce_and_consume(start: Start) -> None:
    container = start(environment={"KAFKA_CREATE_TOPICS": "t1:3:1,t2:1:1:compact"})
    topics = output_of(container, "kafka-topics", *SERVER, "--describe")
    assert "Topic: t1\t" in topics
    assert "PartitionCount: 3" in topics
    assert "cleanup.policy=compact" in topics
    output_of(container, "kafka-console-producer", *SERVER, "--topic", "lines", stdin="one\ntwo\n")
    read = ("--topic", "lines", "--from-beginning", "--max-messages", "2", "--group", "g")
    assert output_of(container, "kafka-console-consumer.sh", *SERVER, *read) == "one\ntwo\n"
    described = output_of(container, "kafka-consumer-groups", *SERVER, "--describe", "--group", "g")
    assert described.split()[9:15] == ["g", "lines", "0", "2", "2", "0"]


def test_environment_overrides_mounted_file(start: Start) -> None:
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
    settings = output_of(
        container, "kafka-configs", *SERVER, "--describe", "--all", "--broker", "1"
    ).splitlines()
    values = dict(line.split()[0].split("=", 1) for line in settings[1:])
    assert values["num.partitions"] == "5"
    assert values["log.retention.ms"] == "77777"
    assert values["log.retention.hours"] == "7"
    assert "meta.properties" in output_of(container, "ls", "/tmp/kraft-combined-logs")
    log = container.log_text()
    assert "cluster 4L6g3nShT-eMCtK--X86sw" in log
    assert "advertised: broker:9092" in log
    assert "heap" not in log


def test_listeners_of_compose_file_are_used(start: Start) -> None:
    """kbroker ignores the controller listener and serves those for containers and the host."""
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
        versions = output_of(container, "kafka-broker-api-versions", "--bootstrap-server", address)
        assert versions.startswith(f"{address} (id: 7 ")
    output_of(container, "/etc/kafka/docker/healthy")
    assert "[KafkaServer id=7] started" in container.log_text()


def test_broker_listens_on_host_port_and_container_port(start: Start) -> None:
    container = start(environment={"KBROKER_HOST_PORT": "29092"})
    for address in ("localhost:9092", "localhost:29092"):
        versions = output_of(container, "kafka-broker-api-versions", "--bootstrap-server", address)
        assert versions.startswith((f"{address} (id: 1 ", "127.0.0.1:9092 (id: 1 "))
    assert "also advertised" not in container.log_text()


def test_console_and_registry_listen_on_all_addresses(start: Start) -> None:
    container = start(environment={"KBROKER_HTTP_PORT": "8080", "KBROKER_REGISTRY_PORT": "8081"})
    fetch = "import sys, urllib.request; print(urllib.request.urlopen(sys.argv[1]).read())"
    # A loopback address other than 127.0.0.1.
    assert "<html" in output_of(container, "python3", "-c", fetch, "http://127.0.0.2:8080/console/")
    assert (
        output_of(container, "python3", "-c", fetch, "http://127.0.0.2:8081/subjects") == "b'[]'\n"
    )


def test_image_starts_with_confluent_command(start: Start) -> None:
    container = start(
        ["/etc/confluent/docker/run"],
        {"KAFKA_ADVERTISED_LISTENERS": "PLAINTEXT://localhost:9092", "KAFKA_BROKER_ID": "1"},
    )
    assert output_of(container, "kafka-topics", *SERVER, "--list") == ""
    assert container.stop() == 0


def test_invalid_listener_ends_start_with_error(start: Start) -> None:
    container = start(environment={"KAFKA_LISTENERS": "WHAT://:9092"}, until=None)
    assert container.process.wait(timeout=60) == 3
    assert "listener WHAT has no entry in listener.security.protocol.map" in container.log_text()
