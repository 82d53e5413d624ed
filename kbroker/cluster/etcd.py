"""Connection to an etcd metadata store by its URL."""

from __future__ import annotations

import logging
import re
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import parse_qsl, unquote

import trio

from kbroker.config import ConfigError
from kbroker.storage.errors import StorageError

from .etcd_gateway import Gateway, Login
from .etcd_store import REACH_ACTION, EtcdStore
from .running import running
from .store import StoreProblem

logger = logging.getLogger(__name__)

FORM = "etcd://HOST:2379,HOST:2379/NAME"
PORT = 2379
_ADDRESS = re.compile(
    r"(?P<scheme>etcds?)://(?:(?P<login>[^@/]*)@)?(?P<members>[^@/?]+)(?:/(?P<name>[\w.-]+))?"
    r"(?:\?(?P<options>.*))?"
)
_MEMBER = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::(?P<port>\d{1,5}))?")
# Seconds until the first response of etcd must arrive.
START_SECONDS = 15
# Difference between the local clock and etcd's above which a warning is logged.
CLOCK_SECONDS_MAX = 5


class EtcdAddress(NamedTuple):
    """The address of a cluster's metadata in etcd. Use `parse` to create it.

    Attributes:
        endpoints: URLs of the etcd members.
        name: Name of the cluster.
        login: User of etcd, if etcd requires authentication.
        ca: PEM file with the trusted CAs.
        cert: PEM file with the client certificate.
        key: PEM file with the private key of `cert`.
    """

    endpoints: tuple[str, ...]
    name: str
    login: Login | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        """Return the address without a password, for logs."""
        scheme, hosts = "etcd", []
        for each in self.endpoints:
            scheme = "etcds" if each.startswith("https:") else "etcd"
            hosts.append(each.partition("://")[2])
        return f"{scheme}://{','.join(hosts)}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse `etcd://[USER:PASSWORD@]HOST[:PORT],.../NAME[?OPTION=VALUE&...]`.

        The scheme `etcds` selects TLS. Options are the PEM files `ca`, `cert` and `key`, and
        `password-file`, which keeps the password out of process lists.

        Raises:
            ConfigError: The address is invalid.
        """
        match = _ADDRESS.fullmatch(text)
        if match is None or not match["name"]:
            raise ConfigError(f"cluster address: expected {FORM}, where NAME names the cluster")
        scheme = "https" if match["scheme"] == "etcds" else "http"
        endpoints = tuple(_endpoint(scheme, each) for each in match["members"].split(","))
        options = dict(parse_qsl(match["options"] or "", keep_blank_values=True))
        password_file = options.pop("password-file", None)
        unknown = options.keys() - {"ca", "cert", "key"}
        if unknown:
            raise ConfigError(
                f"cluster address: unknown option {', '.join(sorted(unknown))} (valid: ca, cert, key, "
                "password-file)"
            )
        if options and scheme != "https":
            raise ConfigError(
                f"cluster address: {', '.join(options)} requires TLS; use the scheme etcds://"
            )
        if "key" in options and "cert" not in options:
            raise ConfigError("cluster address: the option key requires cert; add cert")
        return cls(endpoints, match["name"], _login(match["login"], password_file), **options)

    @property
    def prefix(self) -> str:
        """Prefix of all keys of the cluster."""
        return f"/kb/{self.name}/"

    def trusted(self) -> ssl.SSLContext | None:
        """Return the TLS context for etcd; None without TLS. Raises ConfigError."""
        if not self.endpoints[0].startswith("https:"):
            return None
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.cert is not None:
                context.load_cert_chain(self.cert, self.key)
        except (OSError, ssl.SSLError) as error:
            files = ", ".join(filter(None, [self.ca, self.cert, self.key]))
            raise ConfigError(f"TLS to etcd: {error} ({files})") from None
        return context


def _endpoint(scheme: str, member: str) -> str:
    match = _MEMBER.fullmatch(member)
    if match is None:
        raise ConfigError(f"cluster address: {member!r} is not HOST:PORT; expected {FORM}")
    return f"{scheme}://{match['host']}:{match['port'] or PORT}"


def _login(text: str | None, password_file: str | None) -> Login | None:
    if not text:
        if password_file is not None:
            raise ConfigError("password-file requires a user: etcd://USER@HOST:2379/NAME")
        return None
    user, has_password, password = text.partition(":")
    if has_password and password_file is None:
        return Login(unquote(user), unquote(password))
    if has_password or password_file is None:
        raise ConfigError("etcd user: provide either a password or a password-file")
    try:
        return Login(unquote(user), Path(password_file).read_text(encoding="utf-8").strip())
    except OSError as error:
        raise ConfigError(f"password-file={password_file}: {error.strerror}") from None


@asynccontextmanager
async def connected(
    address: EtcdAddress, *, patience_seconds: float = START_SECONDS
) -> AsyncIterator[EtcdStore]:
    """Open a store on etcd, and wait until it has read all entries.

    Raises:
        ConfigError: A TLS file is unusable.
        StorageError: etcd did not respond within `patience_seconds`.
    """
    gateway = Gateway(address.endpoints, login=address.login, trusted=address.trusted())
    store = EtcdStore(gateway, address.prefix)
    async with running(store):
        with trio.move_on_after(patience_seconds):
            await store.wait_until_read()
        if not store.is_read:
            no_response = StoreProblem(f"no response in {patience_seconds:g} s", REACH_ACTION)
            problem = store.problem or no_response
            raise StorageError(f"cannot read the cluster metadata at {address}: {problem}")
        _check_clock(gateway.clock_ahead_seconds or 0)
        yield store


def _check_clock(ahead_seconds: float) -> None:
    """Log a warning if the clock differs from etcd's: record timestamps would be wrong."""
    if abs(ahead_seconds) > CLOCK_SECONDS_MAX:
        logger.warning(
            "the clock of this machine is %.0f s %s that of etcd: record timestamps, retention and "
            "transaction timeouts would differ between nodes; synchronize both with NTP",
            abs(ahead_seconds),
            "ahead of" if ahead_seconds > 0 else "behind",
        )
