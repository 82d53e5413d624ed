"""TLS cipher suites and versions by their names in Kafka's settings."""

from __future__ import annotations

import ssl

import pytest

from kbroker.security.errors import BadSettings
from kbroker.security.tls import client_context, server_context

from .certificates import Authority
from .test_stores import handshake, setting

ECDSA = "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256"
NEWEST = "TLS_AES_128_GCM_SHA256,TLS_AES_256_GCM_SHA384,TLS_CHACHA20_POLY1305_SHA256"


def server(authority: Authority, **given: str) -> ssl.SSLContext:
    return server_context(setting(ssl_keystore_location=authority.pem("server"), **given))


def client(authority: Authority, **given: str) -> ssl.SSLContext:
    return client_context(setting(ssl_truststore_location=authority.trusted, **given))


def old_cipher_suites(context: ssl.SSLContext) -> set[str]:
    return {each["name"] for each in context.get_ciphers() if each["protocol"] != "TLSv1.3"}


@pytest.mark.parametrize(
    ("name", "openssl"),
    [
        (ECDSA, "ECDHE-ECDSA-AES128-GCM-SHA256"),
        ("TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384", "ECDHE-RSA-AES256-GCM-SHA384"),
        ("TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256", "ECDHE-RSA-CHACHA20-POLY1305"),
        ("TLS_DHE_RSA_WITH_AES_128_CBC_SHA256", "DHE-RSA-AES128-SHA256"),
        ("TLS_RSA_WITH_AES_128_CBC_SHA", "AES128-SHA"),
        ("TLS_ECDHE_ECDSA_WITH_AES_256_CCM_8", "ECDHE-ECDSA-AES256-CCM8"),
        ("TLS_ECDHE_RSA_WITH_CAMELLIA_256_CBC_SHA384", "ECDHE-RSA-CAMELLIA256-SHA384"),
        ("TLS_ECDHE_RSA_WITH_ARIA_128_GCM_SHA256", "ECDHE-ARIA128-GCM-SHA256"),
    ],
)
def test_java_suite_name_maps_to_openssl_name(
    name: str, openssl: str, authority: Authority
) -> None:
    assert old_cipher_suites(server(authority, ssl_cipher_suites=name)) == {openssl}


def test_handshake_fails_without_common_suite(authority: Authority) -> None:
    strict = server(authority, ssl_cipher_suites=ECDSA)
    handshake(strict, client(authority, ssl_cipher_suites=ECDSA))
    other = "TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"
    with pytest.raises(ssl.SSLError):
        handshake(strict, client(authority, ssl_cipher_suites=other))


def test_version_without_listed_suite_is_disabled(authority: Authority) -> None:
    """Each suite belongs to one TLS version, as in Java."""
    old = server(authority, ssl_cipher_suites=ECDSA)
    assert old.maximum_version is ssl.TLSVersion.TLSv1_2
    new = server(authority, ssl_cipher_suites=NEWEST)
    assert new.minimum_version is ssl.TLSVersion.TLSv1_3
    with pytest.raises(ssl.SSLError):
        handshake(old, client(authority, ssl_cipher_suites=NEWEST))
    context = server(authority, ssl_cipher_suites=f"{NEWEST},{ECDSA}")
    for version in ("TLSv1.2", "TLSv1.3"):
        handshake(context, client(authority, ssl_enabled_protocols=version))


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"ssl_cipher_suites": f"{ECDSA},TLS_NONE_SUCH"},
            "suites: TLS_NONE_SUCH: unknown cipher",
        ),
        (
            {"ssl_cipher_suites": "ECDHE-RSA-AES128-GCM-SHA256"},
            "use IANA names, for example TLS_AES_128_GCM_SHA256",
        ),
        (
            {"ssl_cipher_suites": "TLS_RSA_WITH_NULL_SHA256"},
            "TLS_RSA_WITH_NULL_SHA256: unknown",
        ),
        ({"ssl_cipher_suites": "TLS_ECDH_anon_WITH_AES_128_CBC_SHA"}, "unknown cipher suite"),
        (
            {"ssl_cipher_suites": ECDSA, "ssl_enabled_protocols": "TLSv1.3"},
            "none of them belongs to the versions",
        ),
        (
            {"ssl_cipher_suites": NEWEST, "ssl_enabled_protocols": "TLSv1.2"},
            "none of them belongs to the versions",
        ),
        (
            {"ssl_enabled_protocols": "TLSv1.1,TLSv1.2"},
            "protocols: unsupported version TLSv1.1",
        ),
    ],
)
def test_unusable_suites_and_versions_are_rejected(
    given: dict[str, str], message: str, authority: Authority
) -> None:
    with pytest.raises(BadSettings, match=message):
        server(authority, **given)


@pytest.mark.skipif(
    hasattr(ssl.SSLContext, "set_ciphersuites"),
    reason="this Python can choose among the cipher suites of TLS 1.3",
)
def test_partial_tls_13_suites_are_rejected_without_python_support(authority: Authority) -> None:
    with pytest.raises(BadSettings, match="cannot choose among those of TLS"):
        server(authority, ssl_cipher_suites=f"TLS_AES_256_GCM_SHA384,{ECDSA}")
