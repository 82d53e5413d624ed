"""Cipher suites of TLS, by the names that Kafka's settings have: IANA's, which are Java's.

OpenSSL has names of its own for those before TLS 1.3, made from the same parts.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Sequence

from .errors import BadSettings

SETTING = "ssl.cipher.suites"
_EVERY = "ALL:!aNULL:!eNULL:!PSK:!SRP"
"""All that show who the server is by a certificate."""
_RULES = (
    (r"^TLS_", ""),
    (r"^RSA_WITH_", ""),  # the usual one, which OpenSSL does not mention
    (r"_WITH_", "_"),
    (r"CHACHA20_POLY1305_SHA256$", "CHACHA20_POLY1305"),
    (r"CCM_8$", "CCM8"),
    (r"(AES|ARIA|CAMELLIA)_(\d+)", r"\1\2"),
    (r"((?:AES|CAMELLIA)\d+)_CBC", r"\1"),
    (r"^ECDHE_RSA_ARIA", "ECDHE_ARIA"),
    (r"_", "-"),
)


def limit_suites(context: ssl.SSLContext, names: Sequence[str]) -> None:
    """Let a context use these cipher suites only; without any it is left as it is.

    A version of TLS of which none is named is not spoken, as in Java. Raises BadSettings, which names
    those that there are not.
    """
    if not names:
        return
    newest = _newest(context)
    context.set_ciphers(_EVERY)
    older = {each["name"] for each in context.get_ciphers()} - newest
    known = {name: _openssl_name(name) for name in names if name.startswith("TLS_")}
    unknown = [name for name in names if name not in newest and known.get(name) not in older]
    if unknown:
        raise BadSettings(
            f"{SETTING}: {', '.join(unknown)}: there is no such cipher suite here; they are named as "
            f"{', '.join(sorted(newest))} and TLS_ECDHE_RSA_WITH_AES_256_GCM_SHA384"
        )
    wanted = [known[name] for name in names if name not in newest]
    _limit_newest(context, [name for name in names if name in newest], newest)
    if wanted:
        context.set_ciphers(":".join(wanted))
    else:
        context.minimum_version = ssl.TLSVersion.TLSv1_3
    if context.minimum_version > _maximum(context):
        raise BadSettings(
            f"{SETTING}: none of them belongs to the versions that ssl.enabled.protocols names"
        )


def _newest(context: ssl.SSLContext) -> set[str]:
    """Those of TLS 1.3, by names that all agree about."""
    return {each["name"] for each in context.get_ciphers() if each["protocol"] == "TLSv1.3"}


def _limit_newest(context: ssl.SSLContext, wanted: Sequence[str], every: set[str]) -> None:
    if not wanted:
        context.maximum_version = min(_maximum(context), ssl.TLSVersion.TLSv1_2)
    elif {*wanted} != every:
        # Python has this from 3.15 on.
        choose = getattr(context, "set_ciphersuites", None)
        if choose is None:
            raise BadSettings(
                f"{SETTING}: this Python cannot choose among those of TLS 1.3; name all of "
                f"{', '.join(sorted(every))}, or none of them, and then only TLS 1.2 is spoken"
            )
        choose(":".join(wanted))


def _maximum(context: ssl.SSLContext) -> ssl.TLSVersion:
    """Comparable: the one that stands for the newest version is below all others."""
    found = context.maximum_version
    return ssl.TLSVersion.TLSv1_3 if found is ssl.TLSVersion.MAXIMUM_SUPPORTED else found


def _openssl_name(name: str) -> str:
    for pattern, instead in _RULES:
        name = re.sub(pattern, instead, name)
    return name
