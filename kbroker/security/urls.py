"""Where keys and tokens are had from, as Kafka's settings name it: a file, or a server that shows who it is."""

from __future__ import annotations

import re
import ssl
from pathlib import Path
from urllib.parse import unquote, urlsplit

from .errors import BadSettings
from .jaas import LoginModule
from .tls import client_context

_PRINTABLE = re.compile(r"[\x21-\x7e]+")


def file_of(name: str, url: str) -> Path | None:
    """The file of a setting's URL; None where it is https. Raises BadSettings for any other one."""
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # it is looked at when it is asked for
    except ValueError:
        raise BadSettings(f"{name} is no URL; give https://HOST/PATH or file:///PATH") from None
    if parts.scheme == "file" and parts.path:
        return Path(unquote(parts.path))
    is_whole = parts.hostname and "@" not in parts.netloc and _PRINTABLE.fullmatch(url)
    if parts.scheme != "https" or not is_whole:
        raise BadSettings(
            f"{name} is neither https://HOST/PATH nor file:///PATH; from elsewhere others could read "
            "and change it on its way"
        )
    return None


def place_of(url: str) -> str:
    """A URL as it may be told: what follows a question mark may be a secret."""
    parts = urlsplit(url)
    return f"{parts.netloc}{parts.path}"


def trusted_by(module: LoginModule) -> ssl.SSLContext:
    """Whose certificates are believed there: ``ssl.*`` options of a login module, as Kafka has it.

    Raises BadSettings.
    """
    options = {"ssl.endpoint.identification.algorithm": "https", **module.options}
    return client_context(lambda name: options.get(name, ""))
