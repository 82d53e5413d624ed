"""`kbroker serve --tls-dev`: a server with TLS, SCRAM and ACLs that needs no preparation.

A CA, the server certificate and the administrator's password are stored in a subdirectory of the log
directory, readable only by their owner, and reused by later starts. Files are written only after the
server has locked the log directory, so a failed start leaves no files.
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

from .client_settings import Access, Example, client_files, examples
from .dev_files import AUTHORITY, AUTHORITY_KEY, DIRECTORY, PASSWORD, SERVER
from .errors import StartFailed
from .listeners import protocol_of, split_address
from .private_files import write_private

if TYPE_CHECKING:
    from kbroker.security.certificate_authority import CertificateAuthority, Pair

ADMIN = "admin"
MECHANISM = ScramMechanism.SHA_512
PASSWORD_BYTES = 24
_END_OF_CERTIFICATE = "-----END CERTIFICATE-----\n"
# Documentation addresses (RFC 5737, RFC 3849) for a route lookup; nothing is sent.
_EXTERNAL_ADDRESSES = ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1"))
_MANAGED_SETTINGS = (
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
    """Certificates, password and settings of `--tls-dev`.

    Args:
        config: Settings of the server.
        directory: Directory of the files; None for a temporary directory while the server runs.

    Attributes:
        values: Settings that `--tls-dev` sets.
        config: Settings including `values`.

    Raises:
        ConfigError: The settings conflict with `--tls-dev`.
        StartFailed: The stored files cannot be used, or a certificate cannot be issued.
    """

    def __init__(self, config: BrokerConfig, directory: Path | None) -> None:
        self._directory = directory
        now = datetime.now(UTC)
        listeners = _with_sasl_ssl(config)
        self._authority, self._password = _load_or_generate(directory, now)
        if self._authority.ends_at <= now:
            raise StartFailed(
                f"the CA in {directory} has expired; remove that directory, and let clients trust the "
                "new CA that the next start generates"
            )
        self._server = self._server_pair(hosts_of(config), now)
        module = "org.apache.kafka.common.security.scram.ScramLoginModule required"
        others = config.super_users.strip().rstrip(";")
        # Nodes authenticate with each other as the administrator.
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
        self.config = config.overlay(self.values, origin="--tls-dev")

    def _server_pair(self, hosts: Sequence[str], now: datetime) -> Pair:
        """Return the stored server certificate if it is valid for these hosts, or a new one."""
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
                f"cannot issue a certificate for {', '.join(hosts)} ({error}); change listeners, "
                "advertised.listeners or the host name of this machine"
            ) from None

    @property
    def own(self) -> Security:
        """Client security settings with which the server connects to itself."""
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
    def written_files(self, addresses: str) -> Iterator[tuple[Path, Sequence[Example]]]:
        """Write the files of the server and of clients.

        Args:
            addresses: Bootstrap servers for clients.

        Yields:
            The directory, and examples for clients.

        Raises:
            StartFailed: A file cannot be written.
        """
        with contextlib.ExitStack() as stack:
            try:
                if self._directory is None:
                    temporary = tempfile.TemporaryDirectory(prefix=f"kbroker-{DIRECTORY}-")
                    directory = Path(stack.enter_context(temporary))
                else:
                    directory = self._directory.absolute()
                    directory.mkdir(mode=0o700, exist_ok=True)
                lines = self._write(directory, addresses)
            except OSError as error:
                raise StartFailed(
                    f"--tls-dev: cannot write {error.filename}: {error.strerror}; free some disk "
                    "space, or check its permissions"
                ) from None
            yield directory, lines

    def _write(self, directory: Path, addresses: str) -> Sequence[Example]:
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
            write_private(directory / name, text)
        return examples(access, directory)


def hosts_of(config: BrokerConfig) -> list[str]:
    """Return the host names and addresses at which clients may reach the listeners."""
    advertised = [
        split_address(each, "advertised.listeners")[1] for each in config.advertised_listeners
    ]
    bound = [split_address(each, "listeners")[1] for each in config.listeners]
    found = {each.host for each in (*advertised, *bound)}
    own = _own_addresses() if found & set(EVERY_INTERFACE) else []
    hosts = {socket.gethostname(), *found, *own} - {*EVERY_INTERFACE, *LOOPBACK_NAMES}
    return [*LOOPBACK_NAMES, *sorted(hosts)]


def _own_addresses() -> Iterator[str]:
    """Yield the source addresses of this machine's outgoing connections."""
    for family, other in _EXTERNAL_ADDRESSES:
        with contextlib.suppress(OSError), socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((other, 9))
            yield probe.getsockname()[0]


def _with_sasl_ssl(config: BrokerConfig) -> dict[str, str]:
    """Return the listener settings with SASL_SSL for all listeners.

    Raises:
        ConfigError: A setting conflicts with `--tls-dev`.
    """
    for name in _MANAGED_SETTINGS:
        if config.origin(name) is not None:
            raise ConfigError(
                f"--tls-dev sets {name}, which is also set in {config.origin(name)}; omit one of them"
            )
    secure = SecurityProtocol.SASL_SSL
    renamed: dict[str, str] = {}
    for text in config.listeners:
        name, _ = split_address(text, "listeners")
        protocol = protocol_of(config, name)
        if protocol not in (SecurityProtocol.PLAINTEXT, secure):
            raise ConfigError(
                f"--tls-dev sets the protocol of listeners to {secure}, but {name} has {protocol}; "
                "omit one of them"
            )
        renamed[name] = secure if name == SecurityProtocol.PLAINTEXT else name
    if len({*renamed.values()}) < len(renamed):
        raise ConfigError(
            f"--tls-dev renames listener {SecurityProtocol.PLAINTEXT} to {secure}, which exists; "
            "rename one of them"
        )

    def with_new_names(texts: Iterable[str]) -> str:
        parts = (text.partition("://") for text in texts)
        return ",".join(f"{renamed.get(name.upper(), name)}://{rest}" for name, _, rest in parts)

    protocols = {name: secure for name in renamed.values()}
    return {
        "listeners": with_new_names(config.listeners),
        "advertised.listeners": with_new_names(config.advertised_listeners),
        "listener.security.protocol.map": ",".join(":".join(each) for each in protocols.items()),
        "inter.broker.listener.name": next(iter(protocols)),
    }


def _load_or_generate(directory: Path | None, now: datetime) -> tuple[CertificateAuthority, str]:
    """Return the stored CA and password, or generate a new CA and password.

    Raises:
        StartFailed: The stored files cannot be used.
    """
    try:
        from kbroker.security.certificate_authority import CertificateAuthority, Pair
    except ModuleNotFoundError as error:
        raise StartFailed(f"--tls-dev needs {error.name}: pip install 'kbroker[tls]'") from None

    stored_files = (
        [directory / name for name in (AUTHORITY, AUTHORITY_KEY, PASSWORD)] if directory else []
    )
    if not any(each.exists() for each in stored_files):
        name = f"kbroker --tls-dev, {socket.gethostname()[:32]}, {now:%Y-%m-%d}"
        return CertificateAuthority.new(name, now), secrets.token_urlsafe(PASSWORD_BYTES)
    try:
        certificate, key, password = (
            each.read_text(encoding="ascii").strip() for each in stored_files
        )
        if not (password and set(password) <= _SAFE):
            raise ValueError(f"{PASSWORD} is empty or has characters other than {_SAFE_TEXT}")
        return CertificateAuthority(Pair(certificate + "\n", key + "\n")), password
    except OSError as error:
        raise _unusable(directory, f"{error.filename}: {error.strerror}") from None
    except ValueError as error:
        raise _unusable(directory, str(error)) from None


_SAFE_TEXT = "letters, digits, - and _"
_SAFE = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")


def _unusable(directory: Path | None, reason: str) -> StartFailed:
    return StartFailed(
        f"--tls-dev cannot use the files in {directory} ({reason}); restore them, or remove that "
        "directory: the next start then generates new files, which clients need"
    )


def _read_pair(path: Path) -> Pair | None:
    """Read a certificate and its key, or return None if the file does not exist."""
    from kbroker.security.certificate_authority import Pair

    try:
        text = path.read_text(encoding="ascii")
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise _unusable(path.parent, f"{path.name}: {error}") from None
    certificate, end, key = text.partition(_END_OF_CERTIFICATE)
    return Pair(certificate + end, key)
