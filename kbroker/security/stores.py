"""Keys and certificates where Kafka's settings say they are.

Kafka keeps its own key and certificate in a key store and the certificates that it trusts in a trust
store: a file, or PEM text in the settings themselves (KIP-651). Here a file is read as what it is, PEM
or PKCS#12, whatever its ``type`` says: Java, too, reads a PKCS#12 file as type JKS. Java's own JKS
format is refused, with the command that converts it.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

Lookup: TypeAlias = Callable[[str], str]
"""The text of a setting; empty when it is not set."""

_JKS, _JCEKS = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"
_PEM = b"-----BEGIN "
_FILE_BYTES_MAX = 16 * 1024 * 1024


class BadStore(ValueError):
    """A key store or trust store that cannot be used; the text names the setting and what to do."""


class Identity(NamedTuple):
    """A private key and its certificates, the own one first, as PEM; the password of the key."""

    pem: bytes
    password: str


def read_identity(setting: Lookup) -> Identity | None:
    """The own key and certificates of ``ssl.keystore.*``; None when none are set. Raises BadStore."""
    chain, key = setting("ssl.keystore.certificate.chain"), setting("ssl.keystore.key")
    location = setting("ssl.keystore.location")
    if chain or key:
        if location:
            raise BadStore(
                "ssl.keystore.location and ssl.keystore.key are two key stores: leave one of them out"
            )
        if not (chain and key):
            missing = "ssl.keystore.key" if chain else "ssl.keystore.certificate.chain"
            raise BadStore(f"{missing} is missing: a key and its certificates belong together")
        return Identity(f"{key}\n{chain}\n".encode(), setting("ssl.key.password"))
    if not location:
        return None
    data = _read("ssl.keystore.location", location)
    if _PEM in data:
        return Identity(data, setting("ssl.key.password") or setting("ssl.keystore.password"))
    return _unpacked("ssl.keystore", location, data, setting("ssl.keystore.password"))


def read_trusted(setting: Lookup) -> str:
    """The certificates of ``ssl.truststore.*`` as PEM; empty when none are set. Raises BadStore."""
    text, location = setting("ssl.truststore.certificates"), setting("ssl.truststore.location")
    if text and location:
        raise BadStore(
            "ssl.truststore.location and ssl.truststore.certificates are two trust stores: leave one "
            "of them out"
        )
    if not location:
        return text
    data = _read("ssl.truststore.location", location)
    if _PEM in data:
        return data.decode("ascii", "replace")
    store = _open("ssl.truststore", location, data, setting("ssl.truststore.password"))
    from cryptography.hazmat.primitives.serialization import Encoding

    found = [store.cert, *store.additional_certs]
    pem = b"".join(each.certificate.public_bytes(Encoding.PEM) for each in found if each)
    if not pem:
        raise BadStore(f"ssl.truststore.location: {location} has no certificates")
    return pem.decode()


def files_of(setting: Lookup) -> list[Path]:
    """The files that the settings name."""
    names = ("ssl.keystore.location", "ssl.truststore.location")
    return [Path(setting(name)) for name in names if setting(name)]


def _read(name: str, location: str) -> bytes:
    try:
        with Path(location).open("rb") as file:
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadStore(f"{name}: {location} cannot be read: {error.strerror or error}") from None
    if len(data) > _FILE_BYTES_MAX:
        raise BadStore(f"{name}: {location} is larger than any key store")
    return data


def _unpacked(kind: str, location: str, data: bytes, password: str) -> Identity:
    """What a PKCS#12 file has, as PEM whose key only this process can read."""
    store = _open(kind, location, data, password)
    if store.key is None or store.cert is None:
        raise BadStore(f"{kind}.location: {location} has no private key with its certificate")
    from cryptography.hazmat.primitives import serialization

    own_password = secrets.token_hex(16)
    key = store.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(own_password.encode()),
    )
    chain = [store.cert, *store.additional_certs]
    pem = [each.certificate.public_bytes(serialization.Encoding.PEM) for each in chain]
    return Identity(b"".join([key, *pem]), own_password)


def _open(kind: str, location: str, data: bytes, password: str) -> PKCS12KeyAndCertificates:
    if data.startswith((_JKS, _JCEKS)):
        raise BadStore(
            f"{kind}.location: {location} is in Java's own format; convert it with keytool "
            f"-importkeystore -srckeystore {location} -destkeystore {Path(location).stem}.p12 "
            "-deststoretype PKCS12, and name the new file"
        )
    try:
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    except ModuleNotFoundError:
        raise BadStore(
            f"{kind}.location: {location} is no PEM file, and other ones need more: pip install "
            "'kbroker[tls]'"
        ) from None
    try:
        return load_pkcs12(data, password.encode() if password else None)
    except ValueError:
        raise BadStore(
            f"{kind}.location: {location} is neither PEM nor PKCS#12, or {kind}.password is wrong"
        ) from None
