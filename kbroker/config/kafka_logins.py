"""Users from variables of Kafka's container images: JAAS files and Bitnami's user lists."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from kbroker.security.jaas import BadJaas, LoginModule, jaas_text, parse_login_file

from .property import ConfigError

JAVA_OPTIONS = "KAFKA_OPTS"
CLIENT_USERS, CLIENT_PASSWORDS = "KAFKA_CLIENT_USERS", "KAFKA_CLIENT_PASSWORDS"
NODE_USER, NODE_PASSWORD = "KAFKA_INTER_BROKER_USER", "KAFKA_INTER_BROKER_PASSWORD"
# Variables that define users; they are not settings of that name.
VARIABLES = frozenset({JAVA_OPTIONS, CLIENT_USERS, CLIENT_PASSWORDS, NODE_USER, NODE_PASSWORD})
# Default SASL mechanisms of Bitnami's image.
BITNAMI_MECHANISMS = "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512"
_LOGIN_FILE = re.compile(r"-Djava\.security\.auth\.login\.config=(?P<path>\S+)")
_SECTION = "KafkaServer"
# SASL mechanisms of each login module.
_MECHANISMS = {
    "PlainLoginModule": ("plain",),
    "ScramLoginModule": ("scram-sha-256", "scram-sha-512"),
    "OAuthBearerLoginModule": ("oauthbearer",),
}


def read_logins(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that define the users in the environment.

    Raises:
        ConfigError: The login file cannot be read, or the numbers of users and passwords differ.
    """
    return _bitnami_settings(environ) | _login_file_settings(environ.get(JAVA_OPTIONS, ""))


def login_sections(options: str) -> dict[str, list[LoginModule]]:
    """Return the login modules by section of the JAAS file in ``KAFKA_OPTS``.

    Returns:
        An empty dict if no JAAS file is given.

    Raises:
        ConfigError: The file cannot be read.
    """
    match = _LOGIN_FILE.search(options)
    if match is None:
        return {}
    path = Path(match["path"].strip("\"'"))
    try:
        return parse_login_file(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8"
        raise ConfigError(f"{JAVA_OPTIONS}: cannot read {path}: {reason}") from None
    except BadJaas as error:
        raise ConfigError(f"{JAVA_OPTIONS}: {path}: {error}") from None


def client_login(options: str) -> str:
    """Return `sasl.jaas.config` for clients from the JAAS file in ``KAFKA_OPTS``, or "".

    Raises:
        ConfigError: The file cannot be read.
    """
    return _text(login_sections(options).get("KafkaClient", []))


def _login_file_settings(options: str) -> dict[str, str]:
    """Return the settings for the `KafkaServer` sections of all listeners and of single listeners."""
    sections = login_sections(options)
    values = {}
    if _SECTION in sections:
        values["sasl.jaas.config"] = _text(sections[_SECTION])
    for name, modules in sections.items():
        listener, dot, rest = name.rpartition(".")
        if dot and rest == _SECTION:
            for module in modules:
                for mechanism in _MECHANISMS.get(module.short_name, ()):
                    setting = f"listener.name.{listener.lower()}.{mechanism}.sasl.jaas.config"
                    values[setting] = _text([module])
    return values


def _bitnami_settings(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the settings for the users in the variables of Bitnami's image."""
    names = _items(environ.get(CLIENT_USERS, ""))
    passwords = _items(environ.get(CLIENT_PASSWORDS, ""))
    if len(names) != len(passwords):
        raise ConfigError(
            f"{CLIENT_USERS}: it has {len(names)} names, but {CLIENT_PASSWORDS} has "
            f"{len(passwords)}; give each user one password"
        )
    users = dict(zip(names, passwords, strict=True))
    own = {}
    if environ.get(NODE_USER) and environ.get(NODE_PASSWORD):
        own = {"username": environ[NODE_USER], "password": environ[NODE_PASSWORD]}
        users[own["username"]] = own["password"]
    if not users:
        return {}
    options = own | {f"user_{name}": password for name, password in users.items()}
    known = [LoginModule(name, options) for name in ("PlainLoginModule", "ScramLoginModule")]
    return {"sasl.jaas.config": _text(known), "sasl.enabled.mechanisms": BITNAMI_MECHANISMS}


def _items(text: str) -> list[str]:
    return [each for each in re.split(r"[,;\s]+", text) if each]


def _text(modules: Iterable[LoginModule]) -> str:
    return " ".join(jaas_text(each.name, each.options) for each in modules)
