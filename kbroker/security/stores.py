"""Keys and certificates where Kafka's settings say they are.

Kafka keeps its own key and certificate in a key store and the certificates that it trusts in a trust
store: a file, or PEM text in the settings themselves (KIP-651). Here a file is read as what it is, PEM
or PKCS#12, whatever its ``type`` says: Java, too, reads a PKCS#12 file as type JKS. Java's own JKS
format is refused, with the command that converts it.
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

Lookup: TypeAlias = Callable[[str], str]
"""The text of a setting; empty when it is not set."""

_JKS, _JCEKS = b"\xfe\xed\xfe\xed", b"\xce\xce\xce\xce"
_PEM = b"-----BEGIN "
PEM, PKCS12 = "PEM", "PKCS12"
_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
_FILE_BYTES_MAX = 1024 * 1024


class Identity(NamedTuple):
    """A private key and its certificates, the own one first, as PEM; the password of the key."""

    pem: bytes
    password: str


def read_identity(setting: Lookup) -> Identity | None:
    """The own key and certificates of ``ssl.keystore.*``; None when none are set. Raises BadSettings."""
    chain, key = setting("ssl.keystore.certificate.chain"), setting("ssl.keystore.key")
    location = setting("ssl.keystore.location")
    if chain or key:
        if location:
            raise BadSettings(
                "ssl.keystore.location and ssl.keystore.key are two key stores: leave one of them out"
            )
        if not (chain and key):
            missing = "ssl.keystore.key" if chain else "ssl.keystore.certificate.chain"
            raise BadSettings(f"{missing} is missing: a key and its certificates belong together")
        return Identity(f"{key}\n{chain}\n".encode(), setting("ssl.key.password"))
    if not location:
        return None
    data = read_file("ssl.keystore.location", location)
    if _PEM in data:
        return Identity(data, setting("ssl.key.password") or setting("ssl.keystore.password"))
    return _unpacked("ssl.keystore", location, data, setting("ssl.keystore.password"))


def read_trusted(setting: Lookup) -> str:
    """The certificates of ``ssl.truststore.*`` as PEM; empty when none are set. Raises BadSettings."""
    text, location = setting("ssl.truststore.certificates"), setting("ssl.truststore.location")
    if text and location:
        raise BadSettings(
            "ssl.truststore.location and ssl.truststore.certificates are two trust stores: leave one "
            "of them out"
        )
    if not location:
        return text
    data = read_file("ssl.truststore.location", location)
    if _PEM in data:
        return data.decode("ascii", "replace")
    store = _open("ssl.truststore", location, data, setting("ssl.truststore.password"))
    from cryptography.hazmat.primitives.serialization import Encoding

    found = [store.cert, *store.additional_certs]
    pem = b"".join(each.certificate.public_bytes(Encoding.PEM) for each in found if each)
    if not pem:
        raise BadSettings(f"ssl.truststore.location: {location} has no certificates")
    return pem.decode()


def type_of(name: str, location: str) -> str:
    """What Java is told that a file is: `PEM` or `PKCS12`. Raises BadSettings."""
    return PEM if _PEM in read_file(name, location) else PKCS12


def files_of(setting: Lookup) -> list[Path]:
    """The files that the settings name."""
    names = ("ssl.keystore.location", "ssl.truststore.location")
    return [Path(setting(name)) for name in names if setting(name)]


def read_file(name: str, location: str) -> bytes:
    """What the file that a setting names has, when it is one. Raises BadSettings."""
    try:
        # A client may name it (KIP-226): what is no file must not be waited for.
        with open(os.open(location, os.O_RDONLY | _NO_WAIT), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise BadSettings(f"{name}: {location} is no file")
            data = file.read(_FILE_BYTES_MAX + 1)
    except OSError as error:
        raise BadSettings(f"{name}: {location} cannot be read: {error.strerror or error}") from None
    if len(data) > _FILE_BYTES_MAX:
        raise BadSettings(f"{name}: {location} is larger than any key store")
    return data


def _unpacked(kind: str, location: str, data: bytes, password: str) -> Identity:
    """What a PKCS#12 file has, as PEM whose key only this process can read."""
    store = _open(kind, location, data, password)
    if store.key is None or store.cert is None:
        raise BadSettings(f"{kind}.location: {location} has no private key with its certificate")
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
        raise BadSettings(
            f"{kind}.location: {location} is in Java's own format; convert it with keytool "
            f"-importkeystore -srckeystore {location} -destkeystore {Path(location).stem}.p12 "
            "-deststoretype PKCS12, and name the new file"
        )
    try:
        from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12
    except ModuleNotFoundError:
        raise BadSettings(
            f"{kind}.location: {location} is no PEM file, and other ones need more: pip install "
            "'kbroker[tls]'"
        ) from None
    try:
        return load_pkcs12(data, password.encode() if password else None)
    except ValueError:
        raise BadSettings(
            f"{kind}.location: {location} is neither PEM nor PKCS#12, or {kind}.password is wrong"
        ) from None
