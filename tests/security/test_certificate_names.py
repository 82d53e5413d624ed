"""Principal names of certificates: Java's format and Kafka's SslPrincipalMapper rules.

The expected names are from OpenJDK 17 for the same certificates, the expected rule results from Apache
Kafka 4.3's own class.
"""

from __future__ import annotations

import datetime
import logging
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding
from cryptography.x509.oid import NameOID as Of

from kbroker.protocol.api_keys import ApiKey
from kbroker.protocol.messages.metadata import MetadataRequest
from kbroker.security.certificate_names import SUBJECT_BYTES_MAX, MappingRules, subject_of
from kbroker.security.errors import AuthenticationError, BadSettings

from ..wire import ConnectionClosed, request
from .certificates import Authority
from .clients import encrypted
from .test_access import AUTHORIZER
from .test_tls_listeners import mutual, secured

Name = Sequence[Sequence[tuple[x509.ObjectIdentifier, str]]]
SUBJECTS: list[tuple[Name, str]] = [
    (
        [
            [(Of.COUNTRY_NAME, "DE")],
            [(Of.STATE_OR_PROVINCE_NAME, "Bayern")],
            [(Of.LOCALITY_NAME, "München")],
            [(Of.ORGANIZATION_NAME, "Acme, Inc.")],
            [(Of.ORGANIZATIONAL_UNIT_NAME, "R+D")],
            [(Of.COMMON_NAME, "kafka.example.com")],
        ],
        r"CN=kafka.example.com,OU=R\+D,O=Acme\, Inc.,L=München,ST=Bayern,C=DE",
    ),
    (
        [[(Of.COMMON_NAME, r' lead "quoted" <a>;b\c=d#e trail ')]],
        r"CN=\ lead \"quoted\" \<a\>\;b\\c\=d\#e trail\ ",
    ),
    (
        [
            [(Of.COMMON_NAME, "#hash")],
            [(Of.STREET_ADDRESS, "Main St 1")],
            [(Of.DOMAIN_COMPONENT, "example")],
            [(Of.USER_ID, "u1")],
        ],
        r"UID=u1,DC=example,STREET=Main St 1,CN=\#hash",
    ),
    (
        [
            [(Of.EMAIL_ADDRESS, "a@b.c")],
            [(Of.SERIAL_NUMBER, "42")],
            [(Of.TITLE, "Dr")],
            [(Of.COMMON_NAME, "x")],
        ],
        "CN=x,2.5.4.12=#0c024472,2.5.4.5=#13023432,1.2.840.113549.1.9.1=#16056140622e63",
    ),
    (
        [[(Of.COMMON_NAME, "a"), (Of.USER_ID, "b"), (Of.ORGANIZATION_NAME, "o")]],
        "CN=a+O=o+UID=b",
    ),
    ([[(Of.COMMON_NAME, "日本 é😀")]], "CN=日本 é😀"),
    ([[(Of.COMMON_NAME, "a\0b\nc\td\x7f")]], "CN=a\\00b\nc\td\x7f"),
    ([[(Of.COMMON_NAME, "   ")]], "CN=\\ \\ \\ "),
    ([], ""),
    (
        [[(x509.ObjectIdentifier("1.2.3.4.5"), "custom")], [(Of.COMMON_NAME, "two  spaces")]],
        "CN=two  spaces,1.2.3.4.5=#0c06637573746f6d",
    ),
    ([[(Of.COMMON_NAME, "x'()+,-./:=?*@&")]], r"CN=x'()\+\,-./:\=?*@&"),
]
RULES = [
    ("DEFAULT", "CN=a,O=b", "CN=a,O=b"),
    (
        (
            "RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,"
            "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/L,"
            "RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/L,DEFAULT"
        ),
        "CN=kafka1,OU=SME,O=mycp,L=Fulton,ST=MD,C=US",
        "kafka1@sme",
    ),
    ("RULE:^CN=(.*?),OU=ServiceUsers.*$/$1/,DEFAULT", "CN=Duke,OU=ServiceUsers,O=Org", "Duke"),
    ("RULE:^CN=nobody$/x/ , DEFAULT", "CN=q", "CN=q"),
    ("RULE:^.*[Cc][Nn]=([a-zA-Z0-9.]*).*$/$1/U , DEFAULT", "cn=JackZ,ou=x", "JACKZ"),
    (r"RULE:^CN=(.*?),OU=\/x.*$/$1\/y/", "CN=a,OU=/x,b", "a/y"),
    ("RULE:CN=(.*),.*/$12-$2/", "CN=ab,O=1", "ab2-$2"),
    ("RULE:.*/x/", "abc", "xx"),
    ("RULE:CN=(.*?)/$1!/", "CN=abc", "!abc"),
    ("RULE:(a)(b)?c/$1$2/", "ac", "a"),
    ("RULE:^CN=(?<n>.*)$/${n}@x/", "CN=q", "q@x"),
    (r"RULE:^CN=(.*)$/\$1/", "CN=q", "$1"),
    (r"RULE:^CN=(.*)$/a\\b$1/", "CN=q", r"a\bq"),
    ("RULE:^CN=((.*))$/$3$10$0/", "CN=q", "$3q0CN=q"),
    ("DEFAULT,", "x", "x"),
    (",DEFAULT", "x", "x"),
    ("RULE:^CN=(.*)$/$1/L,", "CN=A", "a"),
]
BAD_RULES = [
    "RULE:a/b",
    "RULE:a/b/X",
    "RULE:a/b/LU",
    "RULE:^(.*)$/$1/LDEFAULT",
    "RULE:[/b/c/",
    "RULE:(/b/",
    "RULE:b/c/ DEFAULT",
    "DEFAULT DEFAULT",
    "default",
]


def certificate(name: Name) -> bytes:
    """Return a DER certificate with a subject."""
    rows = [[x509.NameAttribute(*each) for each in row] for row in name]
    key = ec.generate_private_key(ec.SECP256R1())
    begin = datetime.datetime(2026, 1, 1)
    made = (
        x509.CertificateBuilder()
        .subject_name(x509.Name([x509.RelativeDistinguishedName(row) for row in rows]))
        .issuer_name(x509.Name([x509.NameAttribute(Of.COMMON_NAME, "issuer")]))
        .public_key(key.public_key())
        .serial_number(5)
        .not_valid_before(begin)
        .not_valid_after(begin + datetime.timedelta(days=3650))
        .sign(key, hashes.SHA256())
    )
    return made.public_bytes(Encoding.DER)


@pytest.mark.parametrize(("name", "written"), SUBJECTS)
def test_subject_is_formatted_like_java(name: Name, written: str) -> None:
    assert subject_of(certificate(name)) == written


def test_too_long_subject_is_rejected() -> None:
    rows = [[(x509.ObjectIdentifier(f"1.2.3.{each}"), "x" * 60)] for each in range(200)]
    assert len(rows) * 60 > SUBJECT_BYTES_MAX
    with pytest.raises(AuthenticationError, match="longer than"):
        subject_of(certificate(rows))


@pytest.mark.parametrize("size", [0, 1, 2, 5, 60, 150])
def test_truncated_certificate_is_rejected(size: int) -> None:
    with pytest.raises(AuthenticationError, match="the subject is malformed"):
        subject_of(certificate(SUBJECTS[0][0])[:size])


@pytest.mark.parametrize(("rules", "subject", "name"), RULES)
def test_first_matching_rule_maps_name(rules: str, subject: str, name: str) -> None:
    assert MappingRules(rules).name_of(subject) == name


@pytest.mark.parametrize("rules", ["RULE:^CN=nobody$/x/", "RULE:CN=(.*)//"])
def test_subject_without_matching_rule_is_rejected(rules: str) -> None:
    with pytest.raises(AuthenticationError, match=r"no rule of ssl\.principal\.mapping\.rules"):
        MappingRules(rules).name_of("CN=q")


@pytest.mark.parametrize("rules", BAD_RULES)
def test_invalid_rules_are_rejected(rules: str) -> None:
    with pytest.raises(BadSettings, match=r"ssl\.principal\.mapping\.rules"):
        MappingRules(rules)


def test_missing_pattern_engine_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "re2", None)
    assert MappingRules("DEFAULT").name_of("CN=q") == "CN=q"
    with pytest.raises(BadSettings, match="pip install google-re2"):
        MappingRules("RULE:^CN=(.*)$/$1/")


def test_pathological_subject_is_matched_in_linear_time() -> None:
    rules = MappingRules("RULE:^(a+)+$/$1/,RULE:^CN=((x|xx)+)*y$/$1/,DEFAULT")
    for subject in ("a" * 8000 + "b", "CN=" + "x" * 8000):
        began = time.process_time()
        assert rules.name_of(subject) == subject
        assert time.process_time() - began < 1  # backtracking would take exponential time


def guarded(*more: str) -> list[str]:
    return [f"authorizer.class.name={AUTHORIZER}", *more]


async def topics_known_to(authority: Authority, settings: list[str], shown: Path | None) -> int:
    """Return the Metadata error of a topic that only super users may auto-create."""
    async with (
        secured(authority, None, *settings) as broker,
        encrypted(broker.endpoint, authority.context(shown)) as wire,
    ):
        request = MetadataRequest(topics=[MetadataRequest.Topic(name="t")])
        got = await wire.ask(ApiKey.METADATA, 12, request)
        return int(got.topics[0].error_code)


@pytest.mark.parametrize(
    ("users", "more", "denied"),
    [
        ("User:{subject}", [], False),
        ("User:alice", [], True),
        ("User:alice", ["ssl.principal.mapping.rules=RULE:^.*CN=([a-z]+).*$/$1/"], False),
        (
            "User:ALICE",
            ["listener.name.ssl.ssl.principal.mapping.rules=RULE:CN=([^,]+).*/$1/U"],
            False,
        ),
        ("User:bob", ["ssl.principal.mapping.rules=RULE:^.*CN=([a-z]+).*$/$1/"], True),
    ],
)
async def test_client_certificate_gives_principal(
    authority: Authority, users: str, more: list[str], denied: bool
) -> None:
    shown = authority.pem("alice")
    users = users.format(subject=subject_of_pem(shown))
    settings = [*mutual(authority), *guarded(f"super.users={users}", *more)]
    assert bool(await topics_known_to(authority, settings, shown)) == denied


def subject_of_pem(path: Path) -> str:
    found = x509.load_pem_x509_certificates(path.read_bytes())
    return subject_of(found[0].public_bytes(Encoding.DER))


async def test_client_without_requested_certificate_is_anonymous(authority: Authority) -> None:
    settings = [*mutual(authority)[:1], "ssl.client.auth=requested", *guarded()]
    shown = authority.pem("alice")
    nobody = [*settings, "super.users=User:ANONYMOUS"]
    assert not await topics_known_to(authority, nobody, None)
    assert await topics_known_to(authority, nobody, shown)


async def test_certificate_without_matching_rule_is_rejected(
    authority: Authority, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    rule = "ssl.principal.mapping.rules=RULE:^CN=bob.*$/bob/"
    async with secured(authority, None, *mutual(authority), rule) as broker:
        with pytest.raises((OSError, ConnectionClosed)):
            async with encrypted(
                broker.endpoint, authority.context(authority.pem("alice"))
            ) as wire:
                await wire.works()
    assert "no rule of ssl.principal.mapping.rules matches the subject" in caplog.text


async def test_metadata_returns_requested_sni_host(authority: Authority) -> None:
    """The certificate of the client's SNI name would not match any other advertised host."""
    async with secured(authority) as broker:
        context = authority.context()
        for name in ("localhost", "127.0.0.1"):
            at = name, broker.endpoint.port
            async with encrypted(at, context) as wire:
                got = await wire.ask(ApiKey.METADATA, 12, request(ApiKey.METADATA, topics=[]))
                assert [(each.host, each.port) for each in got.brokers] == [at]
