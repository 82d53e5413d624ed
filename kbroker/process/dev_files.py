"""File names of `kbroker serve --tls-dev`, in a subdirectory of the first log directory."""

from __future__ import annotations

DIRECTORY = "tls-dev"
AUTHORITY, AUTHORITY_KEY = "ca.pem", "ca.key"
# Server certificate and its key.
SERVER = "server.pem"
PASSWORD = "admin.password"
# Client settings with the password.
JAVA, LIBRDKAFKA = "client.properties", "librdkafka.conf"
# Client settings that read the password from its file.
KAFKA_PYTHON, CONFLUENT_KAFKA, SPARK = "kafka-python.py", "confluent-kafka.py", "spark.py"
# Files that only the owner may read.
SECRETS = (AUTHORITY_KEY, SERVER, PASSWORD, JAVA, LIBRDKAFKA)
