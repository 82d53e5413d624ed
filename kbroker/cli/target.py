"""Which cluster a command speaks to, and how it ends when that does not work."""

from __future__ import annotations

import functools
import os
import signal
import sys
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NoReturn, TypeVar

import click

from kbroker.text.pairs import parse_pairs

from .output import say

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.credentials import Security
    from kbroker.client.endpoint import Endpoint
    from kbroker.protocol.errors import ErrorCode

Command = TypeVar("Command", bound=Callable[..., object])
Result = TypeVar("Result")

FAILED, TIMED_OUT = 1, 4
"""Exit codes; 2 is click's own for what cannot be understood."""
SIGNALLED = 128
"""The number of the signal comes on top."""

BROKERS, CLIENT_ID = "brokers", "client.id"
KAFKA_BROKERS = "bootstrap.servers"
"""Kafka's name for the first one."""
SECURITY_SETTINGS = {
    "security.protocol": "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
    "sasl.mechanism": "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER",
    "sasl.jaas.config": "a login module with username and password, or clientId and clientSecret",
    "sasl.login.callback.handler.class": "Kafka's OAuthBearerLoginCallbackHandler, and need not be named",
    "sasl.oauthbearer.token.endpoint.url": "file:///PATH of a token, or https://HOST/PATH of who issues them",
    "sasl.oauthbearer.client.credentials.client.id": "who asks there for a token",
    "sasl.oauthbearer.client.credentials.client.secret": "the secret of who asks there",
    "sasl.oauthbearer.scope": "what the token is for, as who issues it names that",
    "ssl.truststore.type": "PEM or PKCS12; the file itself says it as well",
    "ssl.truststore.location": "file of the certificates that are trusted, PEM or PKCS#12",
    "ssl.truststore.certificates": "the same as PEM text",
    "ssl.truststore.password": "password of that file, if it is PKCS#12",
    "ssl.keystore.type": "PEM or PKCS12; the file itself says it as well",
    "ssl.keystore.location": "file of this client's certificate and key, PEM or PKCS#12",
    "ssl.keystore.certificate.chain": "this client's certificate and its issuers as PEM text",
    "ssl.keystore.key": "the private key of that certificate as PEM text",
    "ssl.keystore.password": "password of the file of this client's certificate",
    "ssl.key.password": "password of the private key",
    "ssl.cipher.suites": "cipher suites of TLS, by the names that Java has for them",
    "ssl.enabled.protocols": "versions of TLS: TLSv1.2,TLSv1.3",
    "ssl.endpoint.identification.algorithm": "https checks the name in a certificate, nothing does not",
}
"""As Kafka's clients have them."""
REGISTRY, REGISTRY_LOGIN = "schema.registry.url", "basic.auth.user.info"
SETTINGS = {
    BROKERS: "addresses of some brokers of the cluster, HOST:PORT[,HOST:PORT...]",
    CLIENT_ID: "the name under which brokers see this client",
    REGISTRY: "address of a schema registry: http://HOST:PORT or https://HOST:PORT",
    REGISTRY_LOGIN: "NAME:PASSWORD of who logs in there",
    **SECURITY_SETTINGS,
}
SECRETS = frozenset(
    {
        "sasl.jaas.config",
        "sasl.oauthbearer.client.credentials.client.secret",
        "ssl.truststore.password",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.key.password",
        REGISTRY_LOGIN,
    }
)
"""Settings that nobody is shown."""
DEFAULTS = {BROKERS: "localhost:9092", CLIENT_ID: "kbroker"}
ENVIRONMENT = "KBROKER_BOOTSTRAP"


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster that a command speaks to."""

    bootstrap: list[Endpoint]
    client_id: str
    security: Security
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)
    """All of them, as they were given."""

    def opened(self) -> AbstractAsyncContextManager[ClusterClient]:
        """A client of the cluster."""
        from kbroker.client.cluster import open_cluster

        return open_cluster(self.bootstrap, self.client_id, security=self.security)


def target_options(command: Command) -> Command:
    """Give a command `--bootstrap` and `-X`; it receives `target`."""

    @click.option(
        "-b",
        "--bootstrap",
        metavar="HOST:PORT",
        help=f"A broker of the cluster.  [env: {ENVIRONMENT}; default: {DEFAULTS[BROKERS]}]",
    )
    @click.option(
        "-X",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set brokers, client.id, security.protocol, ssl.truststore.location, ... as Kafka's "
        "clients have them; can be given several times.",
    )
    @functools.wraps(command)
    def with_target(
        *args: object, bootstrap: str | None, settings: tuple[str, ...], **kw: object
    ) -> object:
        given = click.get_current_context().find_root().obj or {}
        given = given | parse_settings(settings)
        if bootstrap is not None:
            given[BROKERS] = bootstrap
        return command(*args, target=resolve(given), **kw)

    return with_target  # type: ignore[return-value]


def parse_settings(texts: tuple[str, ...]) -> dict[str, str]:
    """Read KEY=VALUE texts. Raises BadParameter."""
    settings = {}
    try:
        given = parse_pairs(texts)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="-X") from None
    for key, value in given.items():
        name = BROKERS if key == KAFKA_BROKERS else key
        check_setting(name)
        settings[name] = value.strip()
    return settings


def check_setting(key: str) -> None:
    """Raise BadParameter for a key that there is not."""
    if key not in SETTINGS:
        from kbroker.client.cluster import did_you_mean

        hint = did_you_mean(key, SETTINGS)
        raise click.BadParameter(
            f"unknown setting {key!r}{hint} There are {', '.join(SETTINGS)}", param_hint="-X"
        )


def resolve(given: Mapping[str, str]) -> Target:
    """What is given, else what the environment, the profile in use and the defaults say."""
    settings, security = settings_of(given)
    return Target(parse_addresses(settings[BROKERS]), settings[CLIENT_ID], security, settings)


def settings_of(given: Mapping[str, str]) -> tuple[dict[str, str], Security]:
    """The same as settings, and how brokers are reached by them. Raises BadParameter."""
    from .profiles import current_settings

    environment = os.environ.get(ENVIRONMENT)
    settings = DEFAULTS | current_settings()
    if environment:
        settings[BROKERS] = environment
    settings |= given
    return settings, security_of(settings)


def registry_of(settings: Mapping[str, str], given: str | None = None) -> str | None:
    """The address of the schema registry that is given, or that a profile, or `-X`, names.

    Who logs in there stands in the address, unless settings say it. What is given may be no address;
    then it stays what it is.
    """
    found = given or settings.get(REGISTRY)
    login = settings.get(REGISTRY_LOGIN)
    if found is None or login is None or not found.startswith(("http://", "https://")):
        return found
    parts = urllib.parse.urlsplit(found)
    if "@" in parts.netloc:
        return found
    name, _, password = (urllib.parse.quote(each, safe="") for each in login.partition(":"))
    return parts._replace(netloc=f"{name}:{password}@{parts.netloc}").geturl()


def security_of(settings: Mapping[str, str]) -> Security:
    """How a command reaches brokers by these settings. Raises BadParameter."""
    from kbroker.client.credentials import OPEN

    if settings.keys() <= SETTINGS.keys() - SECURITY_SETTINGS.keys():
        return OPEN  # and most commands need not know of TLS
    from kbroker.client import security

    try:
        return security.security_of(settings)
    except security.BadSecurity as error:
        raise click.BadParameter(str(error), param_hint="-X") from None


def parse_addresses(text: str, option: str = "--bootstrap") -> list[Endpoint]:
    """Read HOST:PORT[,HOST:PORT...] of an option. Raises BadParameter."""
    from kbroker.client.endpoint import Endpoint

    try:
        return [Endpoint.parse(address) for address in text.split(",")]
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def run(
    target: Target, work: Callable[[ClusterClient], Awaitable[Result]], *, failed: int = FAILED
) -> Result:
    """Do work on a cluster; ends the process with a message and a status when it fails.

    The status is `failed`, or `TIMED_OUT`.
    """
    return attempt(target, work, functools.partial(_end, failed=failed))


def attempt(
    target: Target,
    work: Callable[[ClusterClient], Awaitable[Result]],
    end: Callable[[BaseException], NoReturn],
) -> Result:
    """Do work on a cluster; where it fails `end` is called with the first error.

    Who reads the output no more, and who interrupts, ends the process without a word.
    """
    import trio

    from kbroker.client.errors import first_error

    async def main() -> Result:
        async with target.opened() as cluster:
            return await work(cluster)

    try:
        return trio.run(main, strict_exception_groups=True)
    except BaseExceptionGroup as group:
        failure = first_error(group)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # `end` raises what is a bug
        failure = error
    if isinstance(failure, BrokenPipeError):
        # What reads our output has seen enough; Python would complain about the rest at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    if isinstance(failure, KeyboardInterrupt):
        sys.exit(SIGNALLED + signal.SIGINT)
    end(failure)


def _end(error: BaseException, failed: int) -> NoReturn:
    """Print an error that a person can do something about and exit; raise every other one."""
    from kbroker.client.errors import ClientError, TimedOut
    from kbroker.protocol.errors import KafkaError
    from kbroker.protocol.primitives import DecodeError

    if not isinstance(error, (ClientError, KafkaError, DecodeError, OSError)):
        raise error
    message = str(error)
    if isinstance(error, OSError) and error.errno is None:
        message += "; does the broker still run? `kbroker health` asks it"
    elif isinstance(error, KafkaError):
        message = refusal(error.code, message)
    fail(message, TIMED_OUT if isinstance(error, TimedOut) else failed)


def refusal(code: ErrorCode, message: str | None) -> str:
    """What a broker said, or the name of its error, and what to do about it."""
    from kbroker.client.errors import next_action

    said, action = message or code.name, next_action(code)
    return f"{said.rstrip('.')}; {action}" if action else said


def fail(message: str, status: int = FAILED) -> NoReturn:
    """Print a message on the error stream and exit.

    Its further lines are indented: those of what it quotes cannot pass for lines of ours.
    """
    say(*f"kbroker: {message}".replace("\n", "\n  ").split("\n"), err=True)
    sys.exit(status)
