"""TLS contexts from Kafka's settings, of a listener and of a client."""

from __future__ import annotations

import logging
import re
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path

from .errors import BadSettings
from .stores import Identity, Lookup, files_of, read_identity, read_trusted

logger = logging.getLogger(__name__)

_SETTINGS = (
    "ssl.cipher.suites",
    "ssl.client.auth",
    "ssl.enabled.protocols",
    "ssl.endpoint.identification.algorithm",
    "ssl.key.password",
    "ssl.keystore.certificate.chain",
    "ssl.keystore.key",
    "ssl.keystore.location",
    "ssl.keystore.password",
    "ssl.truststore.certificates",
    "ssl.truststore.location",
    "ssl.truststore.password",
)
CHECK_SECONDS = 1.0
"""How often it is looked whether files have changed, when clients come."""
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


class ServerSide(ssl.SSLObject):
    """The server's side of one connection."""

    asked_name: str | None = None
    """The host that the client wants to talk to (SNI, RFC 6066), once it has said so."""


def server_context(setting: Lookup) -> ssl.SSLContext:
    """What a listener shows to its clients, and asks of them.

    Settings: ``ssl.keystore.*``, ``ssl.truststore.*``, ``ssl.key.password``, ``ssl.client.auth``,
    ``ssl.enabled.protocols``, ``ssl.cipher.suites``, as Apache Kafka has them. Raises BadSettings.
    """
    identity = read_identity(setting)
    if identity is None:
        raise BadSettings(
            "TLS needs a certificate: set ssl.keystore.location to a PEM or PKCS#12 file that has "
            "one with its private key"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _limit(context, setting)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 1  # a handshake makes each of them, and takes a tenth longer with two
    context.sslobject_class = ServerSide
    context.sni_callback = _keep_name
    _show(context, identity)
    context.verify_mode = _CLIENT_AUTH[setting("ssl.client.auth") or "none"]
    if context.verify_mode is not ssl.CERT_NONE:
        # OpenSSL verifies no certificate when a session is resumed, and a ticket brings another ticket:
        # a client would stay in after its certificate or that of its issuer has expired.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    trusted = read_trusted(setting)
    if trusted:
        _trust(context, trusted)
    elif context.verify_mode is not ssl.CERT_NONE:
        raise BadSettings(
            "ssl.client.auth asks for certificates of clients, and nobody's is trusted: set "
            "ssl.truststore.location"
        )
    return context


def client_context(setting: Lookup) -> ssl.SSLContext:
    """What a client asks of servers, and shows to them if it has a key store.

    Without a trust store it trusts whom the system trusts. Unless
    ``ssl.endpoint.identification.algorithm`` is https it takes a certificate for any name. Raises
    BadSettings.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = setting("ssl.endpoint.identification.algorithm").lower() == "https"
    _limit(context, setting)
    trusted = read_trusted(setting)
    if trusted:
        _trust(context, trusted)
    else:
        context.load_default_certs()
    identity = read_identity(setting)
    if identity is not None:
        _show(context, identity)
    return context


def asked(setting: Lookup) -> tuple[str, ...]:
    """What the settings of TLS say; the same where nothing is to change."""
    return tuple(setting(name) for name in _SETTINGS)


class Certificates:
    """The context of one listener, made anew when its files change.

    `setting` finds the listener's settings. A change that cannot be used is told in the log, and
    what was there before goes on. Raises BadSettings when it cannot be used at first.
    """

    def __init__(self, setting: Lookup, now: Callable[[], float]) -> None:
        self.asked = asked(setting)
        self._setting = setting
        self._now = now
        self._looked_at = now()
        self._files = files_of(setting)
        self._seen = self._stamps()
        self._context = server_context(setting)
        self._to_others: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """For who comes in."""
        self._look()
        return self._context

    def to_others(self) -> ssl.SSLContext:
        """For connections of this node to the same listener of others. Raises BadSettings."""
        self._look()
        if self._to_others is None:
            self._to_others = client_context(self._setting)
        return self._to_others

    @property
    def asks_clients(self) -> bool:
        """Whether nobody comes in without a certificate."""
        return self._context.verify_mode is ssl.CERT_REQUIRED

    def to_itself(self) -> ssl.SSLContext:
        """For a server that asks itself: it shows its own certificate, and takes any."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        identity = read_identity(self._setting)
        if identity is not None:
            _show(context, identity)
        return context

    def _look(self) -> None:
        """Read the files again if they have changed."""
        if self._now() - self._looked_at < CHECK_SECONDS:
            return
        self._looked_at = self._now()
        stamps = self._stamps()
        if stamps == self._seen:
            return
        self._seen = stamps
        self._to_others = None
        try:
            self._context = server_context(self._setting)
        except BadSettings as error:
            logger.warning("the certificate stays as it was: %s", error)
        else:
            logger.info("the certificate was read again: %s", ", ".join(map(str, self._files)))

    def _stamps(self) -> list[tuple[int, int, int] | None]:
        return [_stamp(each) for each in self._files]


def _keep_name(side: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
    assert isinstance(side, ServerSide)
    if name is not None and _HOST.fullmatch(name):
        side.asked_name = name


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _limit(context: ssl.SSLContext, setting: Lookup) -> None:
    """Speak the versions of TLS and use the cipher suites that settings name. Raises BadSettings."""
    names = _items(setting("ssl.enabled.protocols"))
    unknown = [name for name in names if name not in _VERSIONS]
    if unknown:
        raise BadSettings(
            f"ssl.enabled.protocols: {', '.join(unknown)} is not spoken; leave it out, there are TLSv1.2 "
            "and TLSv1.3"
        )
    wanted = sorted(_VERSIONS[name] for name in names)
    context.minimum_version = wanted[0] if wanted else ssl.TLSVersion.TLSv1_2
    context.maximum_version = wanted[-1] if wanted else ssl.TLSVersion.MAXIMUM_SUPPORTED
    # Set before Python 3.11.3: an end without a word looks like one that was said (python/cpython#95494).
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    suites = _items(setting("ssl.cipher.suites"))
    if suites:
        from .cipher_suites import limit_suites  # most settings name none

        limit_suites(context, suites)


def _items(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _trust(context: ssl.SSLContext, pem: str) -> None:
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as Java: what is there is trusted
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        raise BadSettings(f"ssl.truststore: these are no certificates: {error}") from None


def _show(context: ssl.SSLContext, identity: Identity) -> None:
    # OpenSSL reads keys from files only. Nobody else can read this one, and it goes at once.
    try:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "identity.pem")
            path.write_bytes(identity.pem)
            context.load_cert_chain(path, password=identity.password)
    except ssl.SSLError as error:
        raise BadSettings(
            f"ssl.keystore: the key and its certificates cannot be used ({error.reason or error}); "
            "it takes one private key, its certificate and those of the issuers, and ssl.key.password "
            "if the key has one"
        ) from None
    except OSError as error:
        raise BadSettings(
            f"ssl.keystore: no room for a moment in the directory of temporary files ({error}); TMPDIR "
            "names another one"
        ) from None
