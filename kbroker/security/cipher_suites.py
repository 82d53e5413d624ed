"""TLS cipher suites by their IANA names, which Java and Kafka's settings use.

For suites before TLS 1.3, OpenSSL uses other names, which consist of the same parts.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence

from .errors import BadSettings

SETTING = "ssl.cipher.suites"
# All suites that authenticate the server with a certificate.
_ALL_SUITES = "ALL:!aNULL:!eNULL:!PSK:!SRP"
_OPENSSL_NAME_RULES = (
    (r"^TLS_", ""),
    (r"^RSA_WITH_", ""),  # RSA key exchange, which OpenSSL's names omit
    (r"_WITH_", "_"),
    (r"CHACHA20_POLY1305_SHA256$", "CHACHA20_POLY1305"),
    (r"CCM_8$", "CCM8"),
    (r"(AES|ARIA|CAMELLIA)_(\d+)", r"\1\2"),
    (r"((?:AES|CAMELLIA)\d+)_CBC", r"\1"),
    (r"^ECDHE_RSA_ARIA", "ECDHE_ARIA"),
    (r"_", "-"),
)


def limit_suites(context: ssl.SSLContext, names: Sequence[str]) -> None:
    """Restrict a TLS context to cipher suites; an empty list leaves the context unchanged.

    As in Java, a TLS version for which no suite is listed is disabled.

    Raises:
        BadSettings: A suite is unknown, or no suite belongs to the enabled versions.
    """
    if not names:
        return
    tls13 = _tls13_suites(context)
    context.set_ciphers(_ALL_SUITES)
    tls12 = {each["name"] for each in context.get_ciphers()} - tls13
    known = {name: _openssl_name(name) for name in names if name.startswith("TLS_")}
    unknown = [name for name in names if name not in tls13 and known.get(name) not in tls12]
    if unknown:
        raise BadSettings(
            f"{SETTING}: {', '.join(unknown)}: unknown cipher suite; use IANA names, for example "
            f"{', '.join(sorted(tls13))} or TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
        )
    wanted = [known[name] for name in names if name not in tls13]
    _limit_tls13_suites(context, [name for name in names if name in tls13], tls13)
    if wanted:
        context.set_ciphers(":".join(wanted))
    else:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if context.minimum_version > _maximum(context):
        raise BadSettings(
            f"{SETTING}: none of them belongs to the versions in ssl.enabled.protocols; add a suite "
            "of such a version"
        )


def _tls13_suites(context: ssl.SSLContext) -> set[str]:
    """Return the TLS 1.3 suites, whose names are the same everywhere."""
    return {each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.3"}


def _limit_tls13_suites(
    context: ssl.SSLContext, wanted: Sequence[str], all_suites: set[str]
) -> None:
    if not wanted:
        context.maximum_version = min(_maximum(context), ssl.TLSVersion.TLSv1_2)
    elif {*wanted} != all_suites:
        # Python has set_ciphersuites since 3.15.
        choose = getattr(context, "set_ciphersuites", None)
        if choose is None:
            raise BadSettings(
                f"{SETTING}: this Python cannot choose among those of TLS 1.3; list all of "
                f"{', '.join(sorted(all_suites))}, or none of them to allow TLS 1.2 only"
            )
        choose(":".join(wanted))


def _maximum(context: ssl.SSLContext) -> ssl.TLSVersion:
    """Return the maximum version in comparable form: MAXIMUM_SUPPORTED sorts below all others."""
    found = context.maximum_version
    return ssl.TLSVersion.TLSv1_3 if found is ssl.TLSVersion.MAXIMUM_SUPPORTED else found


def _openssl_name(name: str) -> str:
    for pattern, replacement in _OPENSSL_NAME_RULES:
        name = re.sub(pattern, replacement, name)
    return name
