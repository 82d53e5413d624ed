"""Settings of clients of a broker under test, as arguments or properties of each library."""

from __future__ import annotations

import ssl
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from kbroker.security.jaas import jaas_text
from kbroker.security.protocols import SecurityProtocol
from kbroker.security.users import OAUTHBEARER, PLAIN

from .credentials import TOKEN_SECONDS, Certificate

_JAVA = "org.apache.kafka.common.security"

# Settings of a client library, as keyword arguments or a configuration dictionary.
Arguments: TypeAlias = dict[str, Any]


class AnyLogin(Protocol):
    """SASL credentials of a user, as arguments or properties of each client library."""

    @property
    def name(self) -> str: ...
    @property
    def mechanism(self) -> str: ...
    @property
    def kafka_python(self) -> Arguments: ...
    @property
    def aiokafka(self) -> Arguments: ...
    @property
    def confluent_kafka(self) -> Arguments: ...
    @property
    def java(self) -> dict[str, str]: ...


@dataclass(frozen=True, slots=True)
class Login:
    """Credentials of a user with a password."""

    name: str
    password: str = field(repr=False)
    mechanism: str

    @property
    def kafka_python(self) -> Arguments:
        return {"sasl_plain_username": self.name, "sasl_plain_password": self.password}

    @property
    def aiokafka(self) -> Arguments:
        return self.kafka_python

    @property
    def confluent_kafka(self) -> Arguments:
        return {"sasl.username": self.name, "sasl.password": self.password}

    @property
    def java(self) -> dict[str, str]:
        module = "plain.PlainLoginModule" if self.mechanism == PLAIN else "scram.ScramLoginModule"
        options = {"username": self.name, "password": self.password}
        return {"sasl.jaas.config": jaas_text(f"{_JAVA}.{module}", options)}


@dataclass(frozen=True, slots=True)
class TokenLogin:
    """Credentials of a user with a token.

    Attributes:
        name: User name.
        token: Returns a token.
        file: File that contains a token, for Kafka's Java clients.
    """

    name: str
    token: Callable[[], str] = field(repr=False)
    file: Path

    @property
    def mechanism(self) -> str:
        return OAUTHBEARER

    @property
    def kafka_python(self) -> Arguments:
        from kafka.net.sasl.oauth import AbstractTokenProvider

        class Provider(AbstractTokenProvider):  # type: ignore[misc]
            def token(provider) -> str:
                return self.token()

        return {"sasl_oauth_token_provider": Provider()}

    @property
    def aiokafka(self) -> Arguments:
        from aiokafka.abc import AbstractTokenProvider

        class Provider(AbstractTokenProvider):  # type: ignore[misc]
            async def token(provider) -> str:
                return self.token()

        return {"sasl_oauth_token_provider": Provider()}

    @property
    def confluent_kafka(self) -> Arguments:
        return {"oauth_cb": lambda _: (self.token(), time.time() + TOKEN_SECONDS)}

    @property
    def java(self) -> dict[str, str]:
        package = f"{_JAVA}.oauthbearer"
        return {
            "sasl.jaas.config": jaas_text(f"{package}.OAuthBearerLoginModule", {}),
            "sasl.login.callback.handler.class": f"{package}.OAuthBearerLoginCallbackHandler",
            "sasl.oauthbearer.token.endpoint.url": self.file.as_uri(),
        }


@dataclass(frozen=True, slots=True)
class ClientSettings:
    """The settings of one client, as arguments or properties of each client library.

    ``KafkaProducer(**settings.kafka_python)``, ``Producer(settings.confluent_kafka)``,
    ``AIOKafkaProducer(**settings.aiokafka)``.

    Attributes:
        bootstrap_servers: HOST:PORT, with commas between several.
        authority: Certificate of the CA to trust, as PEM; None without TLS.
        login: SASL credentials; None without SASL.
        certificate: Certificate of the client; None if the broker does not request one.
    """

    bootstrap_servers: str
    authority: str | None = field(default=None, repr=False)
    login: AnyLogin | None = None
    certificate: Certificate | None = field(default=None, repr=False)

    @property
    def protocol(self) -> SecurityProtocol:
        """Value of `security.protocol`."""
        return protocol_of(tls=self.authority is not None, has_login=self.login is not None)

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """TLS context with the CA and the client certificate; None without TLS."""
        if self.authority is None:
            return None
        context = ssl.create_default_context(cadata=self.authority)
        if self.certificate is not None:
            # Python can load certificates only from files.
            with tempfile.TemporaryDirectory(prefix="kbroker-") as directory:
                path = Path(directory) / "client.pem"
                path.write_text(self.certificate.key + self.certificate.chain, encoding="utf-8")
                context.load_cert_chain(path)
        return context

    @property
    def kafka_python(self) -> Arguments:
        """Keyword arguments of kafka-python's clients; tokens need kafka-python 3.0."""
        return self._python_arguments() | ({} if self.login is None else self.login.kafka_python)

    @property
    def aiokafka(self) -> Arguments:
        """Keyword arguments of aiokafka's clients."""
        return self._python_arguments() | ({} if self.login is None else self.login.aiokafka)

    def _python_arguments(self) -> Arguments:
        found: Arguments = {
            "bootstrap_servers": self.bootstrap_servers,
            "security_protocol": str(self.protocol),
        }
        if self.authority is not None:
            found["ssl_context"] = self.ssl_context
        if self.login is not None:
            found["sasl_mechanism"] = self.login.mechanism
        return found

    @property
    def confluent_kafka(self) -> Arguments:
        """Configuration of confluent-kafka and other clients based on librdkafka."""
        found: Arguments = self._dotted_properties()
        if self.authority is not None:
            found["ssl.ca.pem"] = self.authority
        if self.certificate is not None:
            found |= {
                "ssl.certificate.pem": self.certificate.chain,
                "ssl.key.pem": self.certificate.key,
            }
        return found | ({} if self.login is None else self.login.confluent_kafka)

    @property
    def java(self) -> dict[str, str]:
        """Properties of Kafka's Java clients, and of `kbroker -X`."""
        found = self._dotted_properties()
        if self.authority is not None:
            found |= {
                "ssl.truststore.type": "PEM",
                "ssl.truststore.certificates": self.authority,
            }
        if self.certificate is not None:
            found |= {
                "ssl.keystore.type": "PEM",
                "ssl.keystore.certificate.chain": self.certificate.chain,
                "ssl.keystore.key": self.certificate.key,
            }
        return found | ({} if self.login is None else self.login.java)

    def _dotted_properties(self) -> dict[str, str]:
        found = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": str(self.protocol),
        }
        if self.login is not None:
            found["sasl.mechanism"] = self.login.mechanism
        return found

    @property
    def spark(self) -> dict[str, str]:
        """Options of Spark's ``format("kafka")`` and of ``format("kbroker")``."""
        return {f"kafka.{name}": value for name, value in self.java.items()}


def protocol_of(*, tls: bool, has_login: bool) -> SecurityProtocol:
    """Return the protocol of a listener with or without TLS and SASL."""
    if has_login:
        return SecurityProtocol.SASL_SSL if tls else SecurityProtocol.SASL_PLAINTEXT
    return SecurityProtocol.SSL if tls else SecurityProtocol.PLAINTEXT
