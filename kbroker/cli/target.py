"""The cluster that a command connects to, and error handling of commands."""

from __future__ import annotations

import functools
import os
import signal
import sys
import urllib.parse
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, NoReturn, TypeVar

import click

from kbroker.text.pairs import parse_pairs

from .access import Access
from .output import problem, say
from .profiles import complete_profiles, current_profile, profile_named
from .streams import discard_output, is_write_error

if TYPE_CHECKING:
    from kbroker.client.cluster import ClusterClient
    from kbroker.client.credentials import Security
    from kbroker.client.endpoint import Endpoint

Command = TypeVar("Command", bound=Callable[..., object])
Result = TypeVar("Result")

# Exit codes; click uses 2 for invalid usage.
FAILED, TIMED_OUT = 1, 4
# Base of the exit code after a signal; the signal number is added.
SIGNALLED = 128

BROKERS, CLIENT_ID = "brokers", "client.id"
# Kafka's name of the setting BROKERS.
KAFKA_BROKERS = "bootstrap.servers"
# Settings of Kafka's clients.
SECURITY_SETTINGS = {
    "security.protocol": "PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL",
    "sasl.mechanism": "PLAIN, SCRAM-SHA-256, SCRAM-SHA-512 or OAUTHBEARER",
    "sasl.jaas.config": "login module with username and password, or with clientId and clientSecret",
    "sasl.username": "user name for PLAIN and SCRAM, instead of sasl.jaas.config",
    "sasl.password": "password of sasl.username",
    "sasl.login.callback.handler.class": "Kafka's OAuthBearerLoginCallbackHandler; optional",
    "sasl.oauthbearer.token.endpoint.url": "file:///PATH of a token, or URL of the token endpoint: https://HOST/PATH",
    "sasl.oauthbearer.client.credentials.client.id": "client ID for the token endpoint",
    "sasl.oauthbearer.client.credentials.client.secret": "client secret for the token endpoint",
    "sasl.oauthbearer.scope": "scope of the requested token",
    "ssl.truststore.type": "PEM or PKCS12; optional, because the file format is detected",
    "ssl.truststore.location": "file of trusted CA certificates, PEM or PKCS#12",
    "ssl.truststore.certificates": "trusted CA certificates in PEM format",
    "ssl.truststore.password": "password of the file ssl.truststore.location, if it is PKCS#12",
    "ssl.keystore.type": "PEM or PKCS12; optional, because the file format is detected",
    "ssl.keystore.location": "file of the client's certificate and private key, PEM or PKCS#12",
    "ssl.keystore.certificate.chain": "certificate chain of the client in PEM format",
    "ssl.keystore.key": "private key of the client in PEM format",
    "ssl.keystore.password": "password of the file ssl.keystore.location",
    "ssl.key.password": "password of the private key",
    "ssl.cipher.suites": "TLS cipher suites, by their Java names",
    "ssl.enabled.protocols": "TLS versions: TLSv1.2,TLSv1.3",
    "ssl.endpoint.identification.algorithm": "https verifies the host name of the broker; empty disables that",
}
REGISTRY, REGISTRY_LOGIN = "schema.registry.url", "basic.auth.user.info"
SETTINGS = {
    BROKERS: "addresses of one or more brokers of the cluster, HOST[:PORT][,HOST[:PORT]...]",
    CLIENT_ID: "client ID sent to brokers",
    REGISTRY: "URL of a schema registry: http://HOST:PORT or https://HOST:PORT",
    REGISTRY_LOGIN: "NAME:PASSWORD for the schema registry",
    **SECURITY_SETTINGS,
}
# Settings that are never printed.
SECRETS = frozenset(
    {
        "sasl.jaas.config",
        "sasl.password",
        "sasl.oauthbearer.client.credentials.client.secret",
        "ssl.truststore.password",
        "ssl.keystore.key",
        "ssl.keystore.password",
        "ssl.key.password",
        REGISTRY_LOGIN,
    }
)
_USER_SETTINGS = frozenset({"sasl.username", "sasl.password"})
# Names of settings in other tools, such as rpk and librdkafka.
_OTHER_NAMES = {
    "user": "sasl.username",
    "username": "sasl.username",
    "pass": "sasl.password",
    "password": "sasl.password",
    "sasl.mechanisms": "sasl.mechanism",
    "tls.ca": "ssl.truststore.location",
    "ssl.ca.location": "ssl.truststore.location",
}
DEFAULTS = {BROKERS: "localhost:9092", CLIENT_ID: "kbroker"}
ENVIRONMENT = "KBROKER_BOOTSTRAP"


@dataclass(frozen=True, slots=True)
class Target:
    """The cluster that a command connects to."""

    bootstrap: list[Endpoint]
    client_id: str
    security: Security
    settings: Mapping[str, str] = field(default_factory=dict, repr=False)  # all, by name

    @property
    def principal(self) -> str | None:
        """The principal of the client, or None if only the broker knows it."""
        credentials = self.security.credentials
        if credentials is None:
            return None if self.security.tls else "User:ANONYMOUS"
        if credentials.is_delegation_token or not credentials.name:
            return None
        return f"User:{credentials.name}"

    def connect(self) -> AbstractAsyncContextManager[ClusterClient]:
        """Return a client of the cluster, as an async context manager."""
        from kbroker.client.cluster import open_cluster

        return open_cluster(self.bootstrap, self.client_id, security=self.security)


class Given(NamedTuple):
    """Settings of a command line, and the name of the profile that it selects."""

    settings: Mapping[str, str]
    profile: str | None
    # Option that gives the addresses, for error messages.
    addresses_option: str = "--bootstrap"


class Resolved(NamedTuple):
    """All settings of a command, with the source of the addresses, for error messages."""

    settings: Mapping[str, str]
    security: Security
    source: str

    @property
    def addresses(self) -> list[Endpoint]:
        """The bootstrap addresses. Raises BadParameter if one is invalid."""
        return parse_addresses(self.settings[BROKERS], self.source)


def complete_client_settings(
    _context: click.Context, _parameter: click.Parameter, incomplete: str
) -> list[str]:
    """Return the names of client settings that start with the typed text, each with `=`."""
    return [f"{name}=" for name in SETTINGS if name.startswith(incomplete)]


def cluster_options(command: Command) -> Command:
    """Add `--bootstrap`, `-X` and `--profile` to a command; it receives `given`."""

    @click.option(
        "-b",
        "--bootstrap",
        metavar="HOST[:PORT]",
        help="Address of a broker of the cluster; the default port is 9092.  "
        f"[env: {ENVIRONMENT}; default: {DEFAULTS[BROKERS]}]",
    )
    @click.option(
        "-X",
        "settings",
        multiple=True,
        metavar="KEY=VALUE",
        help="Set a client setting of Kafka, such as client.id, security.protocol or "
        "ssl.truststore.location; can be given several times.",
        shell_complete=complete_client_settings,
    )
    @profile_option
    @functools.wraps(command)
    def with_settings(
        *args: object,
        bootstrap: str | None,
        settings: tuple[str, ...],
        profile: str | None,
        **kw: object,
    ) -> object:
        return command(*args, given=given_of(click.get_current_context()), **kw)

    return with_settings  # type: ignore[return-value]


def target_options(command: Command) -> Command:
    """Add `--bootstrap`, `-X` and `--profile` to a command; it receives `target`."""

    @cluster_options
    @functools.wraps(command)
    def with_target(*args: object, given: Given, **kw: object) -> object:
        return command(*args, target=resolve(given), **kw)

    return with_target  # type: ignore[return-value]


def profile_option(command: Command) -> Command:
    """Add `--profile` to a command."""
    return click.option(
        "--profile",
        metavar="NAME",
        shell_complete=complete_profiles,
        help="Use the settings of this profile instead of the selected one.",
    )(command)


def given_of(context: click.Context) -> Given:
    """Return the settings that a command line gives before and after the command.

    Raises:
        BadParameter: A setting is invalid.
    """
    before, after = context.find_root().params, context.params
    settings = parse_settings(before.get("settings") or ())
    settings |= parse_settings(after.get("settings") or ())
    profile = after.get("profile") or before.get("profile")
    if after.get("bootstrap") is None:
        return Given(settings, profile, "-X")
    return Given(settings | {BROKERS: after["bootstrap"]}, profile)


def parse_settings(texts: tuple[str, ...]) -> dict[str, str]:
    """Parse KEY=VALUE strings.

    Raises:
        BadParameter: A string is invalid or a key is unknown.
    """
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


def check_setting(key: str, option: str = "-X") -> None:
    """Raise BadParameter for an unknown key of an option."""
    if key not in SETTINGS:
        from kbroker.client.cluster import did_you_mean

        named = _OTHER_NAMES.get(key)
        hint = f"; did you mean {named!r}?" if named else did_you_mean(key, SETTINGS)
        raise click.BadParameter(
            f"unknown setting {key!r}{hint or '.'} Valid: {', '.join(SETTINGS)}", param_hint=option
        )


def resolve(given: Given) -> Target:
    """Return the target for the given settings, environment, profile and defaults."""
    found = settings_of(given)
    return Target(found.addresses, found.settings[CLIENT_ID], found.security, found.settings)


def settings_of(given: Given) -> Resolved:
    """Return all settings of a command.

    The first source with a value applies: the command line, a profile named on it, the environment,
    the selected profile, and the defaults.

    Raises:
        BadParameter: A security setting is invalid.
        UsageError: The profile does not exist.
    """
    name, profile = current_profile() if given.profile is None else profile_named(given.profile)
    of_profile = (f"profile {name!r}", profile)
    environment = os.environ.get(ENVIRONMENT)
    of_environment = (ENVIRONMENT, {BROKERS: environment} if environment else {})
    two = [of_profile, of_environment] if given.profile is None else [of_environment, of_profile]
    sources = [("the default", DEFAULTS), *two, (given.addresses_option, given.settings)]
    settings: dict[str, str] = {}
    for _, each in sources:
        settings = merged(settings, each)
    source = next(name for name, each in reversed(sources) if BROKERS in each)
    is_given = not SECURITY_SETTINGS.keys().isdisjoint(given.settings)
    hint = "-X" if is_given or not name else f"profile {name!r}"
    security = security_of(settings, hint)
    return Resolved(_with_jaas(settings), security, source)


def merged(settings: Mapping[str, str], more: Mapping[str, str]) -> dict[str, str]:
    """Add the settings of a source; its form of the user replaces that of earlier sources."""
    replaced = set[str]()
    if _USER_SETTINGS & more.keys():
        replaced.add("sasl.jaas.config")
    if "sasl.jaas.config" in more:
        replaced |= _USER_SETTINGS
    return {key: each for key, each in settings.items() if key not in replaced} | dict(more)


def _with_jaas(settings: dict[str, str]) -> dict[str, str]:
    """Return settings that passed `security_of`, with the user in Kafka's form."""
    if _USER_SETTINGS.isdisjoint(settings):
        return settings
    from kbroker.client.credentials import with_jaas

    return with_jaas(settings)


def registry_of(
    settings: Mapping[str, str], given: str | None = None, option: str = "--registry"
) -> str | None:
    """Return the given registry URL, or else that of the settings, with the user of the settings.

    A user in the URL takes precedence. A value without http:// or https:// is returned unchanged.

    Args:
        settings: Settings of the command.
        given: Value of the option.
        option: Name of the option, for messages.

    Raises:
        BadParameter: The URL or the user is invalid. The message contains neither.
    """
    found = given or settings.get(REGISTRY)
    login = settings.get(REGISTRY_LOGIN)
    if login is not None and ":" not in login:
        raise click.BadParameter("expected NAME:PASSWORD", param_hint=REGISTRY_LOGIN)
    if found is None or not found.startswith(("http://", "https://")):
        return found
    from kbroker.client.schema_registry import SchemaError, split_address

    try:
        parts = split_address(found)
    except SchemaError as error:
        raise click.BadParameter(str(error), param_hint=option if given else REGISTRY) from None
    if login is None or "@" in parts.netloc:
        return found
    name, _, password = (urllib.parse.quote(each, safe="") for each in login.partition(":"))
    return parts._replace(netloc=f"{name}:{password}@{parts.netloc}").geturl()


def security_of(settings: Mapping[str, str], option: str = "-X") -> Security:
    """Return the security settings for connections to brokers.

    Args:
        settings: Settings by name.
        option: Source of the settings, for error messages.

    Raises:
        BadParameter: A setting is invalid.
    """
    from kbroker.client.credentials import OPEN, BadSecurity

    if settings.keys() <= SETTINGS.keys() - SECURITY_SETTINGS.keys():
        return OPEN  # so that most commands do not import TLS
    from kbroker.client import security

    try:
        return security.security_of(settings)
    except BadSecurity as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def parse_addresses(text: str, option: str = "--bootstrap") -> list[Endpoint]:
    """Parse HOST[:PORT][,HOST[:PORT]...] of an option.

    Raises:
        BadParameter: An address is invalid.
    """
    from kbroker.client.endpoint import Endpoint

    try:
        return Endpoint.parse_bootstrap(text)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint=option) from None


def run(
    target: Target,
    work: Callable[[ClusterClient], Awaitable[Result]],
    *,
    failed: int = FAILED,
    needed: Sequence[Access] = (),
) -> Result:
    """Run `work` on a cluster and return its result; on an error, print a message and exit.

    The exit status is `TIMED_OUT` after a timeout, and `failed` after other errors.

    Args:
        target: The cluster.
        work: Function to run.
        failed: Exit status after an error.
        needed: Operations that `work` performs, for the message after a missing permission.
    """
    end = functools.partial(exit_with_error, failed=failed, needed=needed, user=target.principal)
    return run_or_end(target, work, end)


def run_or_end(
    target: Target,
    work: Callable[[ClusterClient], Awaitable[Result]],
    end: Callable[[BaseException], NoReturn],
) -> Result:
    """Run `work` on a cluster and return its result; on an error, call `end` with the first error.

    If standard output is a closed pipe, or on Ctrl+C, exit without a message.
    """
    import trio

    from kbroker.client.errors import first_error

    async def main() -> Result:
        async with target.connect() as cluster:
            return await work(cluster)

    try:
        return trio.run(main, strict_exception_groups=True)
    except BaseExceptionGroup as group:
        failure = first_error(group)
    except (Exception, KeyboardInterrupt) as error:  # noqa: BLE001  # `end` re-raises bugs
        failure = error
    if isinstance(failure, BrokenPipeError):
        discard_output()
        sys.exit(0)
    if isinstance(failure, KeyboardInterrupt):
        sys.exit(SIGNALLED + signal.SIGINT)
    end(failure)


def exit_with_error(
    error: BaseException, failed: int, needed: Sequence[Access], user: str | None
) -> NoReturn:
    """Print an error that a user can resolve, and exit; re-raise all others."""
    from kbroker.client.errors import (
        AUTHENTICATION_GUIDE,
        CannotRead,
        ClientError,
        LoginRejected,
        TimedOut,
    )
    from kbroker.protocol.errors import KafkaError
    from kbroker.protocol.primitives import DecodeError

    if is_write_error(error) or not isinstance(
        error, (ClientError, KafkaError, DecodeError, OSError)
    ):
        raise error
    from .hints import denial_text, error_text, rejection_text

    if isinstance(error, (KafkaError, CannotRead)) and (
        denial := denial_text(error.code, str(error), user, needed)
    ):
        fail(denial, failed)
    message = error_text(error) if isinstance(error, ClientError) else str(error)
    if isinstance(error, LoginRejected):
        message += f"; see {AUTHENTICATION_GUIDE}"
    elif isinstance(error, OSError) and error.errno is None:
        message += "; check that the broker is running with `kbroker health`"
    elif isinstance(error, KafkaError):
        message = rejection_text(error.code, message)
    fail(message, TIMED_OUT if isinstance(error, TimedOut) else failed)


def fail(message: str, status: int = FAILED) -> NoReturn:
    """Print a message on the error stream and exit.

    Lines after the first are indented, so that quoted text cannot imitate a message of kbroker.
    """
    first, *others = message.split("\n")
    say(problem("kbroker: ", first), *(f"  {line}" for line in others), err=True)
    sys.exit(status)
