"""A private certificate authority (CA) that issues server certificates.

Certificates follow RFC 5280, so that strict clients (Python's ``VERIFY_X509_STRICT``, Java) accept
them. Keys use the curve P-256 and the PKCS#8 format, which Java can read.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from ipaddress import ip_address
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

# Validity of a CA certificate.
AUTHORITY_VALIDITY = timedelta(days=3650)
# Validity of a server certificate.
SERVER_VALIDITY = timedelta(days=365)
# A certificate with less remaining validity is replaced.
RENEWAL_MARGIN = timedelta(days=60)
# Clock skew of clients that certificates tolerate.
CLOCK_SKEW = timedelta(days=1)


class Pair(NamedTuple):
    """A certificate and its private key, as PEM."""

    certificate: str
    key: str

    def __repr__(self) -> str:
        """Hide the key."""
        return "Pair()"


class CertificateAuthority:
    """A CA that issues server certificates.

    Args:
        pair: Certificate and private key of the CA.

    Raises:
        ValueError: The pair cannot be read, or the key does not match the certificate.
    """

    def __init__(self, pair: Pair) -> None:
        self.pair = pair
        self._certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
        self._key = _read_key(pair)
        if self._certificate.public_key() != self._key.public_key():
            raise ValueError("CA: the private key does not match the certificate")

    @classmethod
    def new(cls, name: str, now: datetime) -> CertificateAuthority:
        """Create a CA with a new key, valid for ten years."""
        key = ec.generate_private_key(ec.SECP256R1())
        own = _subject(name)
        builder = (
            _builder(own, own, key, now, now + AUTHORITY_VALIDITY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(is_authority=True), critical=True)
        )
        return cls(_pair(builder.sign(key, SHA256()), key))

    @property
    def ends_at(self) -> datetime:
        """End of the validity of the CA certificate."""
        return self._certificate.not_valid_after_utc

    def issue(self, hosts: Iterable[str], now: datetime) -> Pair:
        """Issue a server certificate for host names and addresses, valid for a year.

        Raises:
            ValueError: A host name is invalid.
        """
        names = _names(hosts)
        key = ec.generate_private_key(ec.SECP256R1())
        ends = min(now + SERVER_VALIDITY, self.ends_at)
        issuer_id = self._certificate.extensions.get_extension_for_class(x509.SubjectKeyIdentifier)
        builder = (
            _builder(_subject("kbroker"), self._certificate.subject, key, now, ends)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(is_authority=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(issuer_id.value),
                critical=False,
            )
            .add_extension(x509.SubjectAlternativeName(names), critical=False)
        )
        return _pair(builder.sign(self._key, SHA256()), key)

    def issued(self, pair: Pair, hosts: Iterable[str], now: datetime) -> bool:
        """Return True if this CA issued a certificate for exactly these names that is still valid.

        Args:
            pair: The certificate and its private key.
            hosts: Host names and addresses that the certificate must contain.
            now: Current time; with less than 60 days of remaining validity the result is False.

        Raises:
            ValueError: The pair cannot be read.
        """
        certificate = x509.load_pem_x509_certificate(pair.certificate.encode())
        try:
            certificate.verify_directly_issued_by(self._certificate)
        except Exception:  # noqa: BLE001  # ValueError, TypeError, or an error of the signature library
            return False
        if certificate.public_key() != _read_key(pair).public_key():
            return False
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
        needed_until = min(now + RENEWAL_MARGIN, self.ends_at)
        return {*found} == {*_names(hosts)} and certificate.not_valid_after_utc >= needed_until


def _names(hosts: Iterable[str]) -> list[x509.GeneralName]:
    return [_name(each) for each in dict.fromkeys(hosts)]


def _name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host.encode("idna").decode())


def _subject(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _builder(
    subject: x509.Name,
    issuer: x509.Name,
    key: ec.EllipticCurvePrivateKey,
    now: datetime,
    ends: datetime,
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - CLOCK_SKEW)
        .not_valid_after(ends)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, is_authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not is_authority,
        key_cert_sign=is_authority,
        crl_sign=is_authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> Pair:
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    return Pair(certificate.public_bytes(Encoding.PEM).decode(), private.decode())


def _read_key(pair: Pair) -> ec.EllipticCurvePrivateKey:
    try:
        key = load_pem_private_key(pair.key.encode(), None)
    except TypeError:
        raise ValueError("private key: it is encrypted with a password") from None
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ValueError("private key: it is not an elliptic-curve key")  # noqa: TRY004
    return key
