"""Test certificates in the file formats that Kafka's settings accept."""

from __future__ import annotations

import ssl
from pathlib import Path

import trustme
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import serialize_key_and_certificates

NAMES = ("localhost", "127.0.0.1", "::1")
PASSWORD = "hush"


class Authority:
    """A test CA that writes certificates to files in `directory`."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._ca = trustme.CA(organization_name=name)
        self.directory = directory
        self.trusted = directory / f"{name}.pem"
        self._ca.cert_pem.write_to_path(self.trusted)

    def pem(self, name: str) -> Path:
        """Write a PEM file with a key and a new certificate."""
        path = self.directory / f"{name}.pem"
        self._ca.issue_cert(*NAMES, common_name=name).private_key_and_cert_chain_pem.write_to_path(
            path
        )
        return path

    def locked(self, name: str, password: str = PASSWORD) -> Path:
        """Write a PEM file with an encrypted key and a new certificate."""
        leaf = self._ca.issue_cert(*NAMES, common_name=name)
        key = load_pem_private_key(leaf.private_key_pem.bytes(), None).private_bytes(
            Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode())
        )
        path = self.directory / f"{name}-locked.pem"
        path.write_bytes(key + b"".join(each.bytes() for each in leaf.cert_chain_pems))
        return path

    def texts(self) -> tuple[str, str]:
        """Return a new certificate and its key as PEM text."""
        leaf = self._ca.issue_cert(*NAMES)
        chain = b"".join(each.bytes() for each in leaf.cert_chain_pems)
        return chain.decode(), leaf.private_key_pem.bytes().decode()

    def pkcs12(self, name: str) -> Path:
        """Write a PKCS#12 file with a password, as Java's keytool does."""
        leaf = self._ca.issue_cert(*NAMES, common_name=name)
        key = load_pem_private_key(leaf.private_key_pem.bytes(), None)
        assert isinstance(key, EllipticCurvePrivateKey)
        own, *chain = (
            x509.load_pem_x509_certificate(each.bytes()) for each in leaf.cert_chain_pems
        )
        path = self.directory / f"{name}.p12"
        path.write_bytes(
            serialize_key_and_certificates(
                name.encode(), key, own, chain, BestAvailableEncryption(PASSWORD.encode())
            )
        )
        return path

    def context(self, shown: Path | None = None) -> ssl.SSLContext:
        """Return a client context that trusts the CA and presents a certificate, if one is given."""
        context = ssl.create_default_context(cafile=str(self.trusted))
        if shown is not None:
            context.load_cert_chain(shown)
        return context
