"""How clients reach a broker under test: what each client library takes."""

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

Arguments: TypeAlias = dict[str, Any]
"""Keyword arguments or settings of the clients of a library, which types them itself or not at all."""


class AnyLogin(Protocol):
    """Who logs in, and what each library has to know for that."""

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
    """Who logs in by a password, and by which mechanism."""

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
    """Who logs in by a token: `token` makes one, `file` holds one."""

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
    """The settings of one client, in the form of each library: dictionaries ready to be passed.

    ``KafkaProducer(**settings.kafka_python)``, ``Producer(settings.confluent_kafka)``,
    ``AIOKafkaProducer(**settings.aiokafka)``. `authority` is the certificate that is to be trusted as
    PEM, None where there is no TLS; `login` None where nobody logs in; `certificate` the client's own.
    """

    bootstrap_servers: str
    authority: str | None = field(default=None, repr=False)
    login: AnyLogin | None = None
    certificate: Certificate | None = field(default=None, repr=False)

    @property
    def protocol(self) -> SecurityProtocol:
        """What is `security.protocol` everywhere."""
        return protocol_of(tls=self.authority is not None, has_login=self.login is not None)

    @property
    def ssl_context(self) -> ssl.SSLContext | None:
        """One that trusts the broker, and shows the client's certificate; None where there is no TLS."""
        if self.authority is None:
            return None
        context = ssl.create_default_context(cadata=self.authority)
        if self.certificate is not None:
            # Python reads them from files only.
            with tempfile.TemporaryDirectory(prefix="kbroker-") as directory:
                path = Path(directory) / "client.pem"
                path.write_text(self.certificate.key + self.certificate.chain, encoding="utf-8")
                context.load_cert_chain(path)
        return context

    @property
    def kafka_python(self) -> Arguments:
        """Keyword arguments of kafka-python's clients, from 3.0 on where tokens are shown."""
        return self._in_python() | ({} if self.login is None else self.login.kafka_python)

    @property
    def aiokafka(self) -> Arguments:
        """Keyword arguments of aiokafka's clients."""
        return self._in_python() | ({} if self.login is None else self.login.aiokafka)

    def _in_python(self) -> Arguments:
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
        """The configuration of confluent-kafka, and of everything else on librdkafka."""
        found: Arguments = self._in_words()
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
        """Properties of Kafka's own clients, and of `kbroker -X`."""
        found = self._in_words()
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

    def _in_words(self) -> dict[str, str]:
        found = {
            "bootstrap.servers": self.bootstrap_servers,
            "security.protocol": str(self.protocol),
        }
        if self.login is not None:
            found["sasl.mechanism"] = self.login.mechanism
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
