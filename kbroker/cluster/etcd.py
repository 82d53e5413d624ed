"""A cluster's metadata on etcd, by the address that an operator gives."""

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
from .etcd_store import EtcdStore
from .running import running

logger = logging.getLogger(__name__)

FORM = "etcd://HOST:2379,HOST:2379/NAME"
PORT = 2379
_ADDRESS = re.compile(
    r"(?P<scheme>etcds?)://(?:(?P<login>[^@/]*)@)?(?P<members>[^@/?]+)(?:/(?P<name>[\w.-]+))?"
    r"(?:\?(?P<options>.*))?"
)
_MEMBER = re.compile(r"(?P<host>\[[0-9a-fA-F:.]+\]|[\w.-]+)(?::(?P<port>\d{1,5}))?")
START_SECONDS = 15
"""How long etcd may take to answer the first time."""
CLOCK_SECONDS_MAX = 5


class EtcdAddress(NamedTuple):
    """Where the metadata of a cluster is. Make it with `parse`.

    `endpoints` are those of etcd's members, `name` is the cluster's; the files are of TLS: whom to
    trust, and the certificate of this client with its key.
    """

    endpoints: tuple[str, ...]
    name: str
    login: Login | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __str__(self) -> str:
        """Without a password: it is for logs."""
        scheme, hosts = "etcd", []
        for each in self.endpoints:
            scheme = "etcds" if each.startswith("https:") else "etcd"
            hosts.append(each.partition("://")[2])
        return f"{scheme}://{','.join(hosts)}/{self.name}"

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `etcd://[USER:PASSWORD@]HOST[:PORT],.../NAME[?OPTION=VALUE&...]`.

        With `etcds` members are asked over TLS. Options are `ca`, `cert` and `key`, files in PEM,
        and `password-file`, so that no password is in a list of processes. Raises ConfigError.
        """
        match = _ADDRESS.fullmatch(text)
        if match is None or not match["name"]:
            raise ConfigError(f"the cluster's address is not {FORM}: NAME is that of the cluster")
        scheme = "https" if match["scheme"] == "etcds" else "http"
        endpoints = tuple(_endpoint(scheme, each) for each in match["members"].split(","))
        options = dict(parse_qsl(match["options"] or "", keep_blank_values=True))
        password_file = options.pop("password-file", None)
        unknown = options.keys() - {"ca", "cert", "key"}
        if unknown:
            raise ConfigError(
                f"the cluster's address has {', '.join(sorted(unknown))}; there are ca, cert, key "
                "and password-file"
            )
        if options and scheme != "https":
            raise ConfigError(f"{', '.join(options)} are of TLS: write etcds:// for it")
        if "key" in options and "cert" not in options:
            raise ConfigError("the cluster's address has a key without its cert")
        return cls(endpoints, match["name"], _login(match["login"], password_file), **options)

    @property
    def prefix(self) -> str:
        """What all keys of the cluster begin with."""
        return f"/kb/{self.name}/"

    def trusted(self) -> ssl.SSLContext | None:
        """How members are known; None without TLS. Raises ConfigError."""
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
        raise ConfigError(f"the cluster's address is not {FORM}: {member!r} is no HOST:PORT")
    return f"{scheme}://{match['host']}:{match['port'] or PORT}"


def _login(text: str | None, password_file: str | None) -> Login | None:
    if not text:
        if password_file is not None:
            raise ConfigError("password-file goes with a user: etcd://USER@HOST:2379/NAME")
        return None
    user, has_password, password = text.partition(":")
    if has_password and password_file is None:
        return Login(unquote(user), unquote(password))
    if has_password or password_file is None:
        raise ConfigError("the user of etcd needs a password, or a password-file, and not both")
    try:
        return Login(unquote(user), Path(password_file).read_text(encoding="utf-8").strip())
    except OSError as error:
        raise ConfigError(f"password-file={password_file}: {error.strerror}") from None


@asynccontextmanager
async def connected(
    address: EtcdAddress, *, patience_seconds: float = START_SECONDS
) -> AsyncIterator[EtcdStore]:
    """A store on etcd that has read what there is. Raises ConfigError, StorageError."""
    gateway = Gateway(address.endpoints, login=address.login, trusted=address.trusted())
    store = EtcdStore(gateway, address.prefix)
    async with running(store):
        with trio.move_on_after(patience_seconds):
            await store.wait_until_read()
        if not store.is_read:
            raise StorageError(
                f"the cluster's metadata at {address} cannot be read: "
                f"{store.trouble or f'no answer in {patience_seconds:g} s'}; see whether most members of "
                "etcd run, and whether this machine reaches them"
            )
        _check_clock(gateway.clock_ahead_seconds or 0)
        yield store


def _check_clock(ahead_seconds: float) -> None:
    """Warn of a clock with which records would be too old or too new for other nodes."""
    if abs(ahead_seconds) > CLOCK_SECONDS_MAX:
        logger.warning(
            "the clock of this machine is %.0f s %s that of etcd: times of records, retention and "
            "time-outs of transactions would differ between nodes; let both be set by NTP",
            abs(ahead_seconds),
            "ahead of" if ahead_seconds > 0 else "behind",
        )
