"""`kbroker serve --tls-dev`: a server that asks for TLS and a login, without anything to prepare.

An authority, the server's certificate and the password of an administrator lie in a directory of the data
directory, for their owner alone, and are used again by later starts. Nothing is written before the server
has the data directory for itself: a start that is refused leaves no file.
"""

from __future__ import annotations

import contextlib
import secrets
import socket
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from kbroker.client.credentials import Security
from kbroker.client.endpoint import EVERY_INTERFACE
from kbroker.client.security import security_of
from kbroker.config import BrokerConfig, ConfigError
from kbroker.config.broker_table import STANDARD_AUTHORIZER
from kbroker.net.server import LOOPBACK_NAMES
from kbroker.security.protocols import SecurityProtocol
from kbroker.security.scram import ScramMechanism

from .client_settings import Access, Snippet, client_files, snippets
from .dev_files import AUTHORITY, AUTHORITY_KEY, DIRECTORY, PASSWORD, SERVER
from .errors import StartFailed
from .listeners import protocol_of, split_address
from .own_files import write_own

if TYPE_CHECKING:
    from kbroker.security.certificate_authority import CertificateAuthority, Pair

ADMIN = "admin"
MECHANISM = ScramMechanism.SHA_512
PASSWORD_BYTES = 24
_END_OF_CERTIFICATE = "-----END CERTIFICATE-----\n"
_OUTSIDE = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
"""Addresses of documentation (RFC 5737, RFC 3849): nothing is sent there."""
_ITS_OWN = (
    "allow.everyone.if.no.acl.found",
    "authorizer.class.name",
    "sasl.enabled.mechanisms",
    "sasl.jaas.config",
    "sasl.mechanism.inter.broker.protocol",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
)


class DevSecurity:
    """What `--tls-dev` makes of a configuration: `config` has it.

    Parameters: `directory` is where it is kept, None for nowhere: then it is in a directory of temporary files
    while the server runs. Raises ConfigError or StartFailed.
    """

    def __init__(self, config: BrokerConfig, directory: Path | None) -> None:
        self._directory = directory
        now = datetime.now(UTC)
        listeners = _with_logins(config)
        self._authority, self._password = _kept_or_new(directory, now)
        if self._authority.ends_at <= now:
            raise StartFailed(
                f"the authority in {directory} has ended; remove that directory, and let clients trust the "
                "new one that the next start makes"
            )
        self._server = self._server_pair(hosts_of(config), now)
        module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        others = config.super_users.strip().rstrip(";")
        # Nodes log in at each other as the administrator, too.
        own = f'username="{ADMIN}" password="{self._password}"'
        self.values = {
            **listeners,
            "authorizer.class.name": STANDARD_AUTHORIZER,
            "super.users": f"User:{ADMIN};{others}".rstrip(";"),
            "sasl.enabled.mechanisms": MECHANISM,
            "sasl.mechanism.inter.broker.protocol": MECHANISM,
            "sasl.jaas.config": f'{module} {own} user_{ADMIN}="{self._password}";',
            "ssl.keystore.certificate.chain": self._server.certificate,
            "ssl.keystore.key": self._server.key,
            "ssl.truststore.certificates": self._authority.pair.certificate,
        }
        """The settings that it sets."""
        self.config = config.overlay(self.values, origin="--tls-dev")

    def _server_pair(self, hosts: Sequence[str], now: datetime) -> Pair:
        """The server's certificate: that of the last start, if it is still good for these hosts."""
        known = self._directory and _read_pair(self._directory / SERVER)
        try:
            if known and self._authority.issued(known, hosts, now):
                return known
        except ValueError as error:
            raise _unusable(self._directory, str(error)) from None
        try:
            return self._authority.issue(hosts, now)
        except ValueError as error:
            raise StartFailed(
                f"no certificate can have these names: {', '.join(hosts)} ({error}); change "
                "listeners, advertised.listeners or the name of this machine"
            ) from None

    @property
    def own(self) -> Security:
        """With which the server asks itself."""
        return security_of(
            {
                "security.protocol": SecurityProtocol.SASL_SSL,
                "ssl.truststore.certificates": self._authority.pair.certificate,
                "ssl.endpoint.identification.algorithm": "",
                "sasl.mechanism": MECHANISM,
                "sasl.jaas.config": f'ScramLoginModule required username="{ADMIN}" '
                f'password="{self._password}";',
            }
        )

    @contextlib.contextmanager
    def kept(self, addresses: str) -> Iterator[tuple[Path, Sequence[Snippet]]]:
        """Write what there is to be kept, and what clients need for these addresses.

        Yields the directory, and what to tell people. Raises StartFailed.
        """
        with contextlib.ExitStack() as stack:
            try:
                if self._directory is None:
                    temporary = tempfile.TemporaryDirectory(prefix=f"kbroker-{DIRECTORY}-")
                    directory = Path(stack.enter_context(temporary))
                else:
                    directory = self._directory.absolute()
                    directory.mkdir(mode=0o700, exist_ok=True)
                told = self._write(directory, addresses)
            except OSError as error:
                raise StartFailed(
                    f"--tls-dev: {error.filename} cannot be written: {error.strerror}; free some "
                    "space there, or see whose it is"
                ) from None
            yield directory, told

    def _write(self, directory: Path, addresses: str) -> Sequence[Snippet]:
        own, password = self._authority.pair, self._password
        access = Access(
            addresses, ADMIN, password, directory / PASSWORD, MECHANISM, directory / AUTHORITY
        )
        files = {
            AUTHORITY_KEY: own.key,
            AUTHORITY: own.certificate,
            PASSWORD: password,
            SERVER: self._server.certificate + self._server.key,
            **client_files(access),
        }
        for name, text in files.items():
            write_own(directory / name, text)
        return snippets(access, directory)


def hosts_of(config: BrokerConfig) -> list[str]:
    """The names and addresses by which clients may reach the listeners."""
    told = [split_address(each, "advertised.listeners")[1] for each in config.advertised_listeners]
    bound = [split_address(each, "listeners")[1] for each in config.listeners]
    found = {each.host for each in (*told, *bound)}
    own = _own_addresses() if found & set(EVERY_INTERFACE) else []
    hosts = {socket.gethostname(), *found, *own} - {*EVERY_INTERFACE, *LOOPBACK_NAMES}
    return [*LOOPBACK_NAMES, *sorted(hosts)]


def _own_addresses() -> Iterator[str]:
    """Those by which this machine reaches others."""
    for family, other in _OUTSIDE:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((other, 9))
            yield probe.getsockname()[0]


def _with_logins(config: BrokerConfig) -> dict[str, str]:
    """The settings of listeners, with TLS and logins at all of them. Raises ConfigError."""
    for name in _ITS_OWN:
        if config.origin(name) is not None:
            raise ConfigError(
                f"--tls-dev sets {name} by itself, and it is set ({config.origin(name)}): leave one "
                "of them out"
            )
    secure = SecurityProtocol.SASL_SSL
    renamed: dict[str, str] = {}
    for text in config.listeners:
        name, _ = split_address(text, "listeners")
        protocol = protocol_of(config, name)
        if protocol not in (SecurityProtocol.PLAINTEXT, secure):
            raise ConfigError(
                f"--tls-dev makes listeners {secure}, and {name} asks for {protocol}: leave one of "
                "them out"
            )
        renamed[name] = secure if name == SecurityProtocol.PLAINTEXT else name
    if len({*renamed.values()}) < len(renamed):
        raise ConfigError(f"--tls-dev makes {SecurityProtocol.PLAINTEXT} the second {secure}")

    def told(texts: Iterable[str]) -> str:
        parts = (text.partition("://") for text in texts)
        return ",".join(f"{renamed.get(name.upper(), name)}://{rest}" for name, _, rest in parts)

    protocols = {name: secure for name in renamed.values()}
    return {
        "listeners": told(config.listeners),
        "advertised.listeners": told(config.advertised_listeners),
        "listener.security.protocol.map": ",".join(":".join(each) for each in protocols.items()),
        "inter.broker.listener.name": next(iter(protocols)),
    }


def _kept_or_new(directory: Path | None, now: datetime) -> tuple[CertificateAuthority, str]:
    """The authority and the password of the last start, or new ones. Raises StartFailed."""
    try:
        from kbroker.security.certificate_authority import CertificateAuthority, Pair
    except ModuleNotFoundError as error:
        raise StartFailed(f"--tls-dev needs {error.name}: pip install 'kbroker[tls]'") from None

    kept = [directory / name for name in (AUTHORITY, AUTHORITY_KEY, PASSWORD)] if directory else []
    if not any(each.exists() for each in kept):
        name = f"kbroker --tls-dev, {socket.gethostname()[:32]}, {now:%Y-%m-%d}"
        return CertificateAuthority.new(name, now), secrets.token_urlsafe(PASSWORD_BYTES)
    try:
        certificate, key, password = (each.read_text(encoding="ascii").strip() for each in kept)
        if not (password and set(password) <= _SAFE):
            raise ValueError(f"{PASSWORD} has none, or one with signs other than {_SAFE_WORDS}")
        return CertificateAuthority(Pair(certificate + "\n", key + "\n")), password
    except OSError as error:
        raise _unusable(directory, f"{error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise _unusable(directory, str(error)) from None


_SAFE_WORDS = "letters, digits, - and _"
_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def _unusable(directory: Path | None, reason: str) -> StartFailed:
    return StartFailed(
        f"--tls-dev cannot use what is in {directory} ({reason}); bring it back, or remove that directory: "
        "the next start makes all of it anew, and clients need the new files"
    )


def _read_pair(path: Path) -> Pair | None:
    """A certificate and its key; None when there are none yet."""
    from kbroker.security.certificate_authority import Pair

    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _unusable(path.parent, f"{path.name}: {error}") from None
    certificate, end, key = text.partition(_END_OF_CERTIFICATE)
    return Pair(certificate + end, key)
