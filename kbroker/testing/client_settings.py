"""How clients reach a broker under test: what each client library takes."""

from __future__ import annotations

import ssl
from dataclasses import dataclass, field
from typing import Any

from kbroker.security.jaas import jaas_text
from kbroker.security.protocols import SecurityProtocol
from kbroker.security.users import PLAIN

_JAVA = "org.apache.kafka.common.security"


@dataclass(frozen=True, slots=True)
class Login:
    """Who logs in, and by which mechanism."""

    name: str
    password: str = field(repr=False)
    mechanism: str


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of one client, in the form of each library: dictionaries ready to be passed.

    ``KafkaProducer(**settings.kafka_python)``, ``Producer(settings.confluent_kafka)``,
    ``AIOKafkaProducer(**settings.aiokafka)``. `authority` is the certificate that is to be trusted as
    PEM, None where there is no TLS; `login` None where nobody logs in.
    """

    bootstrap_servers: str
    authority: str | None = field(default=None, repr=False)
    login: Login | None = None

    @property
    def protocol(self) -> SecurityProtocol:
        """What is `security.protocol` everywhere."""
        return protocol_of(tls=self.authority is not None, has_login=self.login is not None)

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """One that trusts the broker; None where there is no TLS."""
        if self.authority is None:
            return None
        return ssl.create_default_context(cadata=self.authority)

    @property
    def kafka_python(self) -> dict[str, Any]:
        """Keyword arguments of kafka-python's clients."""
        found: dict[str, Any] = {
            "bootstrap_servers": self.bootstrap_servers,
            "security_protocol": str(self.protocol),
        }
        if self.authority is not None:
            found["ssl_context"] = self.ssl_context
        if self.login is not None:
            found |= {
                "sasl_mechanism": self.login.mechanism,
                "sasl_plain_username": self.login.name,
                "sasl_plain_password": self.login.password,
            }
        return found

    @property
    def aiokafka(self) -> dict[str, Any]:
        """Keyword arguments of aiokafka's clients: they are those of kafka-python."""
        return self.kafka_python

    @property
    def confluent_kafka(self) -> dict[str, str]:
        """The configuration of confluent-kafka, and of everything else on librdkafka."""
        found = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": str(self.protocol),
        }
        if self.authority is not None:
            found["ssl.ca.pem"] = self.authority
        if self.login is not None:
            found |= {
                "sasl.mechanism": self.login.mechanism,
                "sasl.username": self.login.name,
                "sasl.password": self.login.password,
            }
        return found

    @property
    def java(self) -> dict[str, str]:
        """Properties of Kafka's own clients, and of `kbroker -X`."""
        found = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": str(self.protocol),
        }
        if self.authority is not None:
            found |= {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": self.authority,
            }
        if self.login is not None:
            module = "plain.PlainLoginModule"
            if self.login.mechanism != PLAIN:
                module = "scram.ScramLoginModule"
            options = {"username": self.login.name, "password": self.login.password}
            found |= {
                "sasl.mechanism": self.login.mechanism,
                "sasl.jaas.config": jaas_text(f"{_JAVA}.{module}", options),
            }
        return found

    @property
    def spark(self) -> dict[str, str]:
        """Options of Spark's ``format("kafka")``, and of ``format("kbroker")``."""
        return {f"kafka.{name}": value for name, value in self.java.items()}


def protocol_of(*, tls: bool, has_login: bool) -> SecurityProtocol:
    """The protocol of a listener with TLS or without, with a login or without."""
    if has_login:
        return SecurityProtocol.SASL_SSL if tls else SecurityProtocol.SASL_PLAINTEXT
    return SecurityProtocol.SSL if tls else SecurityProtocol.PLAINTEXT
