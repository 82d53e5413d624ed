"""Private keys and certificates from the key store and trust store settings of Kafka.

A store is a file, or PEM text in the settings (KIP-651). Files are PEM or PKCS#12; the format is
detected and the ``type`` setting ignored, as Java also reads PKCS#12 files of type JKS. Files in
Java's JKS format are rejected with the command that converts them.
"""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from .errors import BadSettings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates

# Returns the value of a setting; empty if unset.
Lookup: TypeAlias = Callable[[str], str]

_JKS, _JCEKS = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"
_PEM = b"-----BEGIN "
PEM, PKCS12 = "PEM", "PKCS12"
_NON_BLOCKING = getattr(os, "O_NONBLOCK", 0)
_FILE_BYTES_MAX = 1024 * 1024


class Identity(NamedTuple):
    """A private key and its certificate chain as PEM, and the password of the key."""

    pem: bytes
    password: str


def read_identity(setting: Lookup) -> Identity | None:
    """Return the key and certificates of ``ssl.keystore.*``; None if none are set.

    Raises:
        BadSettings: The settings or the files are unusable.
    """
    chain, key = setting("ssl.keystore.certificate.chain"), setting("ssl.keystore.key")
    location = setting("ssl.keystore.location")
    if chain or key:
        if location:
            raise BadSettings(
                "ssl.keystore.location and ssl.keystore.key are two key stores: remove one of them"
            )
        if not (chain and key):
            missing = "ssl.keystore.key" if chain else "ssl.keystore.certificate.chain"
            raise BadSettings(f"{missing} is missing: set both the key and its certificates")
        return Identity(f"{key}\n{chain}\n".encode(), setting("ssl.key.password"))
    if not location:
        return None
    data = read_file("ssl.keystore.location", location)
    if _PEM in data:
        return Identity(data, setting("ssl.key.password") or setting("ssl.keystore.password"))
    return _convert_to_pem("ssl.keystore", location, data, setting("ssl.keystore.password"))


def read_trusted(setting: Lookup) -> str:
    """Return the certificates of ``ssl.truststore.*`` as PEM; empty if none are set.

    Raises:
        BadSettings: The settings or the files are unusable.
    """
    text, location = setting("ssl.truststore.certificates"), setting("ssl.truststore.location")
    if text and location:
        raise BadSettings(
            "ssl.truststore.location and ssl.truststore.certificates are two trust stores: remove one "
            "of them"
        )
    if not location:
        return text
    data = read_file("ssl.truststore.location", location)
    if _PEM in data:
        return data.decode("ascii", "replace")
    store = _load_pkcs12("ssl.truststore", location, data, setting("ssl.truststore.password"))
    from cryptography.hazmat.primitives.serialization import Encoding

    found = [store.cert, *store.additional_certs]
    pem = b"".join(each.certificate.public_bytes(Encoding.PEM) for each in found if each)
    if not pem:
        raise BadSettings(f"ssl.truststore.location: {location} contains no certificates")
    return pem.decode()


def type_of(name: str, location: str) -> str:
    """Return the type of a store file for Java: `PEM` or `PKCS12`. Raises BadSettings."""
    return PEM if _PEM in read_file(name, location) else PKCS12


def files_of(setting: Lookup) -> list[Path]:
    """Return the store files in the settings."""
    names = ("ssl.keystore.location", "ssl.truststore.location")
    return [Path(setting(name)) for name in names if setting(name)]


def read_file(name: str, location: str) -> bytes:
    """Return the contents of the regular file in a setting.

    Args:
        name: Name of the setting, for messages.
        location: Path of the file.

    Raises:
        BadSettings: The path is not a regular file, cannot be read or is too large.
    """
    try:
        # A client can set the path (KIP-226): do not block on pipes and devices.
        with open(os.open(location, os.O_RDONLY | _NON_BLOCKING), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadSettings(f"{name}: {location} is not a regular file")
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadSettings(f"{name}: {location} cannot be read: {error.strerror or error}") from None
    if len(data) > _FILE_BYTES_MAX:
        raise BadSettings(
            f"{name}: {location} is too large for a key store (maximum: {_FILE_BYTES_MAX} bytes)"
        )
    return data


def _convert_to_pem(kind: str, location: str, data: bytes, password: str) -> Identity:
    """Convert a PKCS#12 file to PEM with a random password that only this process knows."""
    store = _load_pkcs12(kind, location, data, password)
    if store.key is None or store.cert is None:
        raise BadSettings(f"{kind}.location: {location} lacks a private key with its certificate")
    from cryptography.hazmat.primitives import serialization

    random_password = secrets.token_hex(16)
    key = store.key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(random_password.encode()),
    )
    chain = [store.cert, *store.additional_certs]
    pem = [each.certificate.public_bytes(serialization.Encoding.PEM) for each in chain]
    return Identity(b"".join([key, *pem]), random_password)


def _load_pkcs12(kind: str, location: str, data: bytes, password: str) -> PKCS12KeyAndCertificates:
    if data.startswith((_JKS, _JCEKS)):
        raise BadSettings(
            f"{kind}.location: {location} is in Java's own format (JKS); convert it with keytool "
            f"-importkeystore -srckeystore {location} -destkeystore {Path(location).stem}.p12 "
            "-deststoretype PKCS12, and set the new file"
        )
    try:
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    except ModuleNotFoundError:
        raise BadSettings(
            f"{kind}.location: {location} is not a PEM file, and other formats need: pip install "
            "'kbroker[tls]'"
        ) from None
    try:
        return load_pkcs12(data, password.encode() if password else None)
    except ValueError:
        raise BadSettings(
            f"{kind}.location: {location} is neither PEM nor PKCS#12, or {kind}.password is wrong"
        ) from None
