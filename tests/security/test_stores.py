"""Key stores and trust stores in Kafka's settings."""

from __future__ import annotations

import os
import ssl
from pathlib import Path

import pytest

from kbroker.security.errors import BadSettings
from kbroker.security.stores import Lookup, read_identity, read_trusted
from kbroker.security.tls import Certificates, client_context, server_context

from .certificates import PASSWORD, Authority


def setting(**given: object) -> Lookup:
    """Return a settings lookup; keywords have `_` for the dots of setting names."""
    texts = {name.replace("_", "."): str(value) for name, value in given.items()}
    return lambda name: texts.get(name, "")


def handshake(server: ssl.SSLContext, client: ssl.SSLContext) -> None:
    """Perform a TLS handshake in memory. Raises ssl.SSLError."""
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    sides = [
        client.wrap_bio(to_client, to_server, server_hostname="localhost"),
        server.wrap_bio(to_server, to_client, server_side=True),
    ]
    left = [*sides]
    for _ in range(10):
        for side in [*left]:
            try:
                side.do_handshake()
                left.remove(side)
            except ssl.SSLWantReadError:
                pass
    assert not left
    sides[1].write(b"hello")
    assert sides[0].read() == b"hello"


def test_pem_file_with_key_and_certificate_is_read(authority: Authority) -> None:
    server = server_context(setting(ssl_keystore_location=authority.pem("server")))
    handshake(server, client_context(setting(ssl_truststore_location=authority.trusted)))


def test_pem_text_in_settings_is_read(authority: Authority) -> None:
    chain, key = authority.texts()
    server = server_context(setting(ssl_keystore_certificate_chain=chain, ssl_keystore_key=key))
    trusted = authority.trusted.read_text()
    handshake(server, client_context(setting(ssl_truststore_certificates=trusted)))


def test_pkcs12_file_is_read_despite_other_type(authority: Authority) -> None:
    server = server_context(
        setting(
            ssl_keystore_location=authority.pkcs12("server"),
            ssl_keystore_password=PASSWORD,
            ssl_keystore_type="JKS",
        )
    )
    handshake(server, client_context(setting(ssl_truststore_location=authority.trusted)))


def test_pkcs12_trust_store_is_read(authority: Authority) -> None:
    store = authority.pkcs12("server")
    lookup = setting(ssl_truststore_location=store, ssl_truststore_password=PASSWORD)
    assert read_trusted(lookup).count("BEGIN CERTIFICATE") == 1
    server = server_context(setting(ssl_keystore_location=store, ssl_keystore_password=PASSWORD))
    handshake(server, client_context(lookup))


def test_missing_key_store_gives_no_identity() -> None:
    assert read_identity(setting()) is None
    assert read_trusted(setting()) == ""


def test_required_client_certificate_is_verified(authority: Authority) -> None:
    server = server_context(
        setting(
            ssl_keystore_location=authority.pem("server"),
            ssl_truststore_location=authority.trusted,
            ssl_client_auth="required",
        )
    )
    trusting = {"ssl_truststore_location": authority.trusted}
    shown = setting(ssl_keystore_location=authority.pem("client"), **trusting)
    handshake(server, client_context(shown))
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        handshake(server, client_context(setting(**trusting)))


def test_enabled_protocols_limit_tls_versions(authority: Authority) -> None:
    own = {"ssl_keystore_location": authority.pem("server")}
    old = server_context(setting(ssl_enabled_protocols="TLSv1.2", **own))
    assert old.maximum_version is ssl.TLSVersion.TLSv1_2
    new = client_context(
        setting(ssl_enabled_protocols="TLSv1.3", ssl_truststore_location=authority.trusted)
    )
    with pytest.raises(ssl.SSLError):
        handshake(old, new)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "TLS needs a certificate: set ssl.keystore.location"),
        ({"ssl_keystore_location": "/nowhere"}, "/nowhere cannot be read: No such file"),
        ({"ssl_keystore_key": "x"}, "ssl.keystore.certificate.chain is missing"),
        ({"ssl_keystore_certificate_chain": "x"}, "ssl.keystore.key is missing"),
        (
            {"ssl_keystore_key": "x", "ssl_keystore_location": "y"},
            "two key stores: remove one of them",
        ),
        (
            {"ssl_keystore_key": "x", "ssl_keystore_certificate_chain": "y"},
            "one private key, its certificate",
        ),
        ({"ssl_enabled_protocols": "SSLv3"}, "valid: TLSv1.2, TLSv1.3"),
        ({"ssl_client_auth": "required"}, "set ssl.truststore.location"),
        ({"ssl_truststore_certificates": "x"}, "invalid certificates"),
        (
            {"ssl_truststore_certificates": "x", "ssl_truststore_location": "y"},
            "two trust stores: remove one",
        ),
    ],
)
def test_unusable_settings_are_rejected(
    given: dict[str, str], message: str, authority: Authority
) -> None:
    has_configured_users = any(name.startswith("ssl_keystore") for name in given) or not given
    own = {} if has_configured_users else {"ssl_keystore_location": authority.pem("server")}
    with pytest.raises(BadSettings, match=message):
        server_context(setting(**own, **given))


def test_jks_file_is_rejected_with_conversion_command(tmp_path: Path) -> None:
    store = tmp_path / "server.jks"
    store.write_bytes(b"\xfe\xed\xfe\xed\x00\x00\x00\x02")
    with pytest.raises(BadSettings, match=r"keytool -importkeystore -srckeystore .*server\.jks"):
        read_identity(setting(ssl_keystore_location=store))


def test_wrong_key_store_password_is_rejected(authority: Authority) -> None:
    given = {"ssl_keystore_location": authority.pkcs12("server")}
    with pytest.raises(BadSettings, match=r"or ssl\.keystore\.password is wrong"):
        read_identity(setting(ssl_keystore_password="loud", **given))


def test_temporary_key_file_is_deleted(
    authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    server_context(setting(ssl_keystore_location=authority.pem("server")))
    assert not [*directory.iterdir()]


def test_unusable_temporary_directory_keeps_certificate(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = 0.0
    path = authority.pem("server")
    certificates = Certificates(setting(ssl_keystore_location=path), lambda: seconds)
    first = certificates.context()
    monkeypatch.setattr("tempfile.tempdir", "/nowhere")
    os.utime(path, (1, 1))
    seconds = 2.0
    assert certificates.context() is first
    assert "set TMPDIR to another one" in caplog.text


def test_changed_files_are_reloaded(authority: Authority) -> None:
    seconds = 0.0
    path = authority.pem("server")
    certificates = Certificates(setting(ssl_keystore_location=path), lambda: seconds)
    first = certificates.context()
    other = Authority(authority.directory, "other")
    path.write_bytes(other.pem("replaced").read_bytes())
    assert certificates.context() is first  # checked less than a second ago
    seconds = 2.0
    handshake(
        certificates.context(), client_context(setting(ssl_truststore_location=other.trusted))
    )


def test_unusable_change_keeps_certificate(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    seconds = 0.0
    path = authority.pem("server")
    certificates = Certificates(setting(ssl_keystore_location=path), lambda: seconds)
    first = certificates.context()
    path.write_text("half a certif")
    os.utime(path, (1, 1))
    seconds = 2.0
    assert certificates.context() is first
    assert "cannot reload the TLS certificate, keeping the previous one" in caplog.text


@pytest.mark.parametrize("store", ["keystore", "truststore"])
def test_unusable_change_keeps_context_for_other_nodes(authority: Authority, store: str) -> None:
    seconds = 0.0
    path, trusted = authority.pem("server"), authority.trusted
    settings = setting(ssl_keystore_location=path, ssl_truststore_location=trusted)
    certificates = Certificates(settings, lambda: seconds)
    first = certificates.context(), certificates.peer_client_context()
    broken = path if store == "keystore" else trusted
    broken.write_text("-----BEGIN CERTIFICATE-----\nhalf")
    os.utime(broken, (1, 1))
    seconds = 2.0
    assert (certificates.context(), certificates.peer_client_context()) == first


def test_changed_files_replace_context_for_other_nodes(authority: Authority) -> None:
    seconds = 0.0
    path, trusted = authority.pem("server"), authority.trusted
    settings = setting(ssl_keystore_location=path, ssl_truststore_location=trusted)
    certificates = Certificates(settings, lambda: seconds)
    certificates.peer_client_context()
    other = Authority(authority.directory, "other")
    path.write_bytes(other.pem("replaced").read_bytes())
    trusted.write_bytes(other.trusted.read_bytes())
    seconds = 2.0
    handshake(certificates.context(), certificates.peer_client_context())


def test_change_is_loaded_once_a_temporary_problem_has_ended(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without a second attempt, the old certificate would be used until it expires."""
    seconds = 0.0
    path = authority.pem("server")
    certificates = Certificates(setting(ssl_keystore_location=path), lambda: seconds)
    other = Authority(authority.directory, "other")
    path.write_bytes(other.pem("replaced").read_bytes())
    with monkeypatch.context() as patched:
        patched.setattr("tempfile.tempdir", "/nowhere")
        for _ in range(3):
            seconds += 2
            certificates.context()
    assert caplog.text.count("cannot reload the TLS certificate") == 1
    seconds += 2
    trusted = setting(ssl_truststore_location=other.trusted)
    handshake(certificates.context(), client_context(trusted))
