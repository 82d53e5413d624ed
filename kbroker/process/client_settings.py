"""Settings with which clients connect to a `--tls-dev` server, for each kind of client.

The lines of the banner contain no password. They name a file that contains it, or reads it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import NamedTuple

from .dev_files import CONFLUENT_KAFKA, JAVA, KAFKA_PYTHON, LIBRDKAFKA, SPARK


class Access(NamedTuple):
    """Access of clients to the server.

    Attributes:
        addresses: Bootstrap servers (HOST:PORT,...).
        user: User name.
        password: Password.
        password_file: File with the password.
        mechanism: SASL mechanism.
        trusted: File with the CA certificate.
    """

    addresses: str
    user: str
    password: str
    password_file: Path
    mechanism: str
    trusted: Path

    def __repr__(self) -> str:
        """Return a representation without the password."""
        return f"Access({self.addresses}, {self.user})"


class Example(NamedTuple):
    """Command line for one kind of client, to copy and paste."""

    client: str
    text: str


def examples(access: Access, directory: Path) -> Sequence[Example]:
    """Return a line of the banner for each kind of client.

    Args:
        access: Access of clients.
        directory: Directory with the `client_files`.
    """
    java, librdkafka = _quoted(directory / JAVA), _quoted(directory / LIBRDKAFKA)
    with_java = f"--bootstrap-server {access.addresses} --command-config {java}"
    return (
        Example("kbroker", f"kbroker profile add tls-dev --file {java}"),
        Example("kcat", f"kcat -F {librdkafka} -L"),
        Example("Java", f"kafka-topics.sh {with_java} --list"),
        Example("Python", f"see {KAFKA_PYTHON}, {CONFLUENT_KAFKA} and {SPARK} in that directory"),
    )


def client_files(access: Access) -> Mapping[str, str]:
    """Return the contents of the client settings files by file name."""
    return {
        JAVA: _java(access),
        LIBRDKAFKA: _librdkafka(access),
        KAFKA_PYTHON: _kafka_python(access) + "\n",
        CONFLUENT_KAFKA: _confluent(access) + "\n",
        SPARK: _spark(access) + "\n",
    }


def _quoted(path: Path) -> str:
    return quote(str(path))


def _kafka_python(access: Access) -> str:
    return f"""\
from pathlib import Path
from kafka import KafkaProducer
settings = {{
    "bootstrap_servers": "{access.addresses}",
    "security_protocol": "SASL_SSL",
    "ssl_cafile": {json.dumps(str(access.trusted))},
    "sasl_mechanism": "{access.mechanism}",
    "sasl_plain_username": "{access.user}",
    "sasl_plain_password": Path({json.dumps(str(access.password_file))}).read_text(),
}}
producer = KafkaProducer(**settings)"""


def _confluent(access: Access) -> str:
    return f"""\
from pathlib import Path
from confluent_kafka import Producer
settings = {{
    "bootstrap.servers": "{access.addresses}",
    "security.protocol": "SASL_SSL",
    "ssl.ca.location": {json.dumps(str(access.trusted))},
    "sasl.mechanism": "{access.mechanism}",
    "sasl.username": "{access.user}",
    "sasl.password": Path({json.dumps(str(access.password_file))}).read_text(),
}}
producer = Producer(settings)"""


def _spark(access: Access) -> str:
    module = _login(access.user, "{password}")
    return f"""\
from pathlib import Path
password = Path({json.dumps(str(access.password_file))}).read_text()
options = {{
    "kafka.bootstrap.servers": "{access.addresses}",
    "kafka.security.protocol": "SASL_SSL",
    "kafka.ssl.truststore.type": "PEM",
    "kafka.ssl.truststore.location": {json.dumps(str(access.trusted))},
    "kafka.sasl.mechanism": "{access.mechanism}",
    "kafka.sasl.jaas.config": f'{module}',
}}
# spark.read.format("kafka").options(**options).option("subscribe", "orders").load()"""


def _java(access: Access) -> str:
    trusted = str(access.trusted).replace("\\", "\\\\")
    return f"""\
bootstrap.servers={access.addresses}
security.protocol=SASL_SSL
ssl.truststore.type=PEM
ssl.truststore.location={trusted}
sasl.mechanism={access.mechanism}
sasl.jaas.config={_login(access.user, access.password)}
"""


def _librdkafka(access: Access) -> str:
    return f"""\
bootstrap.servers={access.addresses}
security.protocol=SASL_SSL
ssl.ca.location={access.trusted}
sasl.mechanism={access.mechanism}
sasl.username={access.user}
sasl.password={access.password}
"""


def _login(user: str, password: str) -> str:
    module = "org.apache.kafka.common.security.scram.ScramLoginModule"
    return f'{module} required username="{user}" password="{password}";'
