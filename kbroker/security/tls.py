"""TLS contexts of listeners and clients from Kafka's settings."""

from __future__ import annotations

import logging
import re
import ssl
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

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
# Minimum seconds between checks for changed files; new connections trigger them.
CHECK_SECONDS = 1.0
_HOST = re.compile(r"[A-Za-z0-9_.-]{1,255}")
_VERSIONS = {"TLSv1.2": ssl.TLSVersion.TLSv1_2, "TLSv1.3": ssl.TLSVersion.TLSv1_3}
_CLIENT_AUTH = {
    "none": ssl.CERT_NONE,
    "requested": ssl.CERT_OPTIONAL,
    "required": ssl.CERT_REQUIRED,
}


# Modification time, size and inode of each file; None for a file that is missing.
_Stamps: TypeAlias = list[tuple[int, int, int] | None]


class ServerSide(ssl.SSLObject):
    """The server side of one TLS connection."""

    # Host name that the client requested (SNI, RFC 6066); None before.
    requested_host: str | None = None


def server_context(setting: Lookup) -> ssl.SSLContext:
    """Create the TLS context of a listener.

    Args:
        setting: Returns ``ssl.keystore.*``, ``ssl.truststore.*``, ``ssl.key.password``,
            ``ssl.client.auth``, ``ssl.enabled.protocols`` and ``ssl.cipher.suites``.

    Raises:
        BadSettings: The settings or the files are unusable.
    """
    identity = read_identity(setting)
    if identity is None:
        raise BadSettings(
            "TLS needs a certificate: set ssl.keystore.location to a PEM or PKCS#12 file that has "
            "one with its private key"
        )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    _apply_limits(context, setting)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 1  # a second ticket would make handshakes a tenth slower
    context.sslobject_class = ServerSide
    context.sni_callback = _set_requested_host
    _load_identity(context, identity)
    context.verify_mode = _CLIENT_AUTH[setting("ssl.client.auth") or "none"]
    if context.verify_mode is not ssl.CERT_NONE:
        # OpenSSL does not verify certificates when it resumes a session. Without this, a client
        # could stay connected by tickets after its certificate or the CA has expired.
        context.num_tickets = 0
        context.options |= ssl.OP_NO_TICKET
    trusted = read_trusted(setting)
    if trusted:
        _trust(context, trusted)
    elif context.verify_mode is not ssl.CERT_NONE:
        raise BadSettings(
            "ssl.client.auth requests client certificates, but no CA is trusted: set "
            "ssl.truststore.location"
        )
    return context


def client_context(setting: Lookup) -> ssl.SSLContext:
    """Create the TLS context of a client; with a key store it presents a certificate.

    Without a trust store, the client trusts the system's CAs. The client checks the host name only
    if ``ssl.endpoint.identification.algorithm`` is https.

    Args:
        setting: Returns the ``ssl.*`` settings.

    Raises:
        BadSettings: The settings or the files are unusable.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = setting("ssl.endpoint.identification.algorithm").lower() == "https"
    _apply_limits(context, setting)
    trusted = read_trusted(setting)
    if trusted:
        _trust(context, trusted)
    else:
        context.load_default_certs()
    identity = read_identity(setting)
    if identity is not None:
        _load_identity(context, identity)
    return context


def settings_snapshot(setting: Lookup) -> tuple[str, ...]:
    """Return the values of all TLS settings, to detect changes."""
    return tuple(setting(name) for name in _SETTINGS)


class Certificates:
    """The TLS contexts of a listener, reloaded when its files change.

    If changed files are unusable, a warning is logged and all previous contexts stay in use. The
    files are read again at the next check, because the cause may be temporary.

    Args:
        setting: Returns the settings of the listener.
        now: Monotonic clock in seconds.

    Raises:
        BadSettings: The initial settings or files are unusable.
    """

    def __init__(self, setting: Lookup, now: Callable[[], float]) -> None:
        self.settings = settings_snapshot(setting)
        self._setting = setting
        self._now = now
        self._checked_at = now()
        self._files = files_of(setting)
        # Stamps of the files that the contexts were loaded from.
        self._loaded_stamps = self._stamps()
        # Stamps of the last unusable files; None if the current files are loaded.
        self._unusable_stamps: _Stamps | None = None
        self._context = server_context(setting)
        self._peer_client_context: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """Return the context for incoming connections."""
        self._reload()
        return self._context

    def peer_client_context(self) -> ssl.SSLContext:
        """Return the context for connections to the same listener of other nodes.

        Raises:
            BadSettings: The settings or the files are unusable.
        """
        self._reload()
        if self._peer_client_context is None:
            self._peer_client_context = client_context(self._setting)
        return self._peer_client_context

    @property
    def requires_client_certificate(self) -> bool:
        """True if clients must present a certificate."""
        return self._context.verify_mode is ssl.CERT_REQUIRED

    def self_client_context(self) -> ssl.SSLContext:
        """Return the context for connections of the node to itself.

        The client side presents the listener's own certificate, and accepts any server certificate.
        """
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        identity = read_identity(self._setting)
        if identity is not None:
            _load_identity(context, identity)
        return context

    def _reload(self) -> None:
        """Reload the files if they have changed."""
        if self._now() - self._checked_at < CHECK_SECONDS:
            return
        self._checked_at = self._now()
        stamps = self._stamps()
        if stamps == self._loaded_stamps:
            self._unusable_stamps = None
            return
        peer_client_context = self._peer_client_context
        try:
            context = server_context(self._setting)
            if peer_client_context is not None:
                peer_client_context = client_context(self._setting)
        except BadSettings as error:
            if stamps != self._unusable_stamps:  # log once per change
                logger.warning(
                    "cannot reload the TLS certificate, keeping the previous one: %s", error
                )
            self._unusable_stamps = stamps
            return
        self._context, self._peer_client_context = context, peer_client_context
        self._loaded_stamps, self._unusable_stamps = stamps, None
        logger.info("reloaded the TLS certificate: %s", ", ".join(map(str, self._files)))

    def _stamps(self) -> _Stamps:
        return [_stamp(each) for each in self._files]


def _set_requested_host(side: ssl.SSLObject, name: str | None, _: ssl.SSLContext) -> None:
    assert isinstance(side, ServerSide)
    if name is not None and _HOST.fullmatch(name):
        side.requested_host = name


def _stamp(path: Path) -> tuple[int, int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _apply_limits(context: ssl.SSLContext, setting: Lookup) -> None:
    """Apply the TLS versions and cipher suites of the settings. Raises BadSettings."""
    names = _items(setting("ssl.enabled.protocols"))
    unknown = [name for name in names if name not in _VERSIONS]
    if unknown:
        raise BadSettings(
            f"ssl.enabled.protocols: unsupported version {', '.join(unknown)} (valid: TLSv1.2, "
            "TLSv1.3)"
        )
    wanted = sorted(_VERSIONS[name] for name in names)
    context.minimum_version = wanted[0] if wanted else ssl.TLSVersion.TLSv1_2
    context.maximum_version = wanted[-1] if wanted else ssl.TLSVersion.MAXIMUM_SUPPORTED
    # Python sets this option before 3.11.3. It would hide truncated streams (python/cpython#95494).
    context.options &= ~ssl.OP_IGNORE_UNEXPECTED_EOF
    suites = _items(setting("ssl.cipher.suites"))
    if suites:
        from .cipher_suites import limit_suites  # most settings select no suites

        limit_suites(context, suites)


def _items(text: str) -> list[str]:
    return [each.strip() for each in text.split(",") if each.strip()]


def _trust(context: ssl.SSLContext, pem: str) -> None:
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as in Java: trust intermediate CAs
    try:
        context.load_verify_locations(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        raise BadSettings(f"ssl.truststore: invalid certificates: {error}") from None


def _load_identity(context: ssl.SSLContext, identity: Identity) -> None:
    # OpenSSL reads keys only from files. The temporary file is private and is deleted at once.
    try:
        with tempfile.TemporaryDirectory() as directory:
            path = Path(directory, "identity.pem")
            path.write_bytes(identity.pem)
            context.load_cert_chain(path, password=identity.password)
    except ssl.SSLError as error:
        raise BadSettings(
            f"ssl.keystore: the key and its certificates cannot be used ({error.reason or error}); "
            "provide one private key, its certificate and those of the issuers, and set "
            "ssl.key.password if the key is encrypted"
        ) from None
    except OSError as error:
        raise BadSettings(
            f"ssl.keystore: cannot write to the temporary directory ({error}); set TMPDIR to "
            "another one"
        ) from None
