"""Warnings about insecure settings: exposed listeners, and files with secrets that others can read."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from kbroker.config import BrokerConfig, SettingEffect, effect_of
from kbroker.config.kafka_only import LISTENER_PREFIX
from kbroker.config.tables import BROKER_PROPERTIES
from kbroker.net.server import LOOPBACK_NAMES, Listener

from .dev_files import DIRECTORY, SECRETS

KEY_STORE = "ssl.keystore.location"
# Maximum number of names of settings in one warning.
NAMES_SHOWN_MAX = 5


def open_listeners(listeners: Iterable[Listener]) -> Iterator[str]:
    """Return a warning for each insecure listener that other machines can reach."""
    for each in listeners:
        if each.host in LOOPBACK_NAMES:
            continue
        if each.certificates is None:
            missing_protection = (
                "no TLS" if each.requires_client_certificate else "neither TLS nor authentication"
            )
            advice = "use SASL_SSL (--tls-dev generates all that it needs)"
        elif not each.requires_client_certificate:
            missing_protection = "TLS, but no authentication"
            advice = "use SASL_SSL, or set ssl.client.auth=required"
        else:
            continue
        what = "read and write everything"
        if each.users is not None:
            reads_passwords = "PLAIN" in each.users.mechanisms
            what = "eavesdrop, passwords included" if reads_passwords else "eavesdrop"
        elif each.requires_client_certificate:
            what = "eavesdrop"
        yield (
            f"anyone who can reach {each.host or 'this machine'} can {what}: listener {each.name} "
            f"has {missing_protection}; listen on localhost unless the network is trusted, or {advice}"
        )


def unused_logins(config: BrokerConfig, listeners: Iterable[Listener]) -> Iterator[str]:
    """Return a warning if SASL is configured, but no listener uses it."""
    names = sorted({name for layer in config.layers for name in layer.values if _is_sasl(name)})
    if not names or any(each.users is not None for each in listeners):
        return
    shown = ", ".join(names[:NAMES_SHOWN_MAX])
    more = f" and {len(names) - NAMES_SHOWN_MAX} more" if len(names) > NAMES_SHOWN_MAX else ""
    yield (
        "clients connect without SASL authentication: no listener uses SASL, so these settings have "
        f"no effect: {shown}{more}; set the protocol of a listener to SASL_SSL (or SASL_PLAINTEXT) in "
        "`listeners` or `listener.security.protocol.map`"
    )


def _is_sasl(name: str) -> bool:
    """Return True if a setting configures how clients authenticate with SASL."""
    is_sasl = name.startswith("sasl.") or ".sasl." in name
    return is_sasl and effect_of(name) is SettingEffect.APPLIED


def open_http(config: BrokerConfig) -> Iterator[str]:
    """Return a warning for each HTTP port that other machines can reach."""
    if config.http_port >= 0 and config.http_host not in LOOPBACK_NAMES:
        yield (
            f"anyone who can reach {config.http_host} can read metrics, with the names of topics, "
            "groups and clients, and all records in the console: HTTP has no authentication; keep "
            "--http-host at 127.0.0.1 unless the network is trusted, or use an authenticating proxy"
        )
    if config.registry_port >= 0 and config.registry_host not in LOOPBACK_NAMES:
        yield (
            f"anyone who can reach {config.registry_host} can register and delete schemas: the "
            "registry has no authentication; keep --registry-host at 127.0.0.1 unless the network is "
            "trusted, or use an authenticating proxy"
        )


def open_files(
    config: BrokerConfig, listeners: Sequence[Listener], data_dirs: Sequence[str]
) -> Iterator[str]:
    """Return a warning for each file with a key or a password that other users can read."""
    for path in dict.fromkeys(_secret_files(config, listeners, data_dirs)):
        if _is_open(path):
            yield (
                f"{path} contains secrets, and users other than its owner can access it; run chmod 600 "
                f"{path}, and make the user that runs kbroker its owner"
            )


def open_directories(data_dirs: Iterable[str]) -> Iterator[str]:
    """Return a warning for each log directory that other users can enter."""
    for each in data_dirs:
        if _is_open(Path(each)):
            yield (
                f"users other than its owner can access log directory {each}; run chmod 700 {each}"
            )


def _secret_files(
    config: BrokerConfig, listeners: Sequence[Listener], data_dirs: Sequence[str]
) -> Iterator[Path]:
    for layer in config.layers:
        if any(map(_is_secret, layer.values)):
            yield Path(layer.origin)  # an origin other than a file does not exist as a path
    for listener in listeners:
        location = config.lookup_for_listener(listener.name)(KEY_STORE)
        if listener.certificates is not None and location:
            yield Path(location)
    for directory in data_dirs[:1]:
        yield from (Path(directory, DIRECTORY, name) for name in SECRETS)


def _is_secret(name: str) -> bool:
    if name.startswith(LISTENER_PREFIX):
        return name.endswith((".sasl.jaas.config", ".password", ".ssl.keystore.key"))
    known = BROKER_PROPERTIES.get(name)
    return known is not None and known.sensitive


def _is_open(path: Path) -> bool:
    # Windows has no POSIX file modes.
    if os.name != "posix":
        return False
    try:
        return bool(stat.S_IMODE(path.stat().st_mode) & 0o077)
    except OSError:
        return False  # the reader of the file reports it
