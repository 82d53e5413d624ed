"""URLs of key sets and token endpoints: a file, or an HTTPS server."""

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
    """Return the path of a file URL; None for an https URL.

    Args:
        name: Name of the setting, for messages.
        url: Value of the setting.

    Raises:
        BadSettings: The URL is neither a file nor an https URL.
    """
    try:
        parts = urlsplit(url)
        parts.port  # noqa: B018  # the property validates the port
    except ValueError:
        raise BadSettings(f"{name} is not a URL; use https://HOST/PATH or file:///PATH") from None
    if parts.scheme == "file" and parts.path:
        return Path(unquote(parts.path))
    is_whole = parts.hostname and "@" not in parts.netloc and _PRINTABLE.fullmatch(url)
    if parts.scheme != "https" or not is_whole:
        raise BadSettings(
            f"{name} is neither https://HOST/PATH nor file:///PATH; other schemes are not "
            "protected from eavesdropping and tampering"
        )
    return None


def without_query(url: str) -> str:
    """Return host and path of a URL for messages; the query can contain secrets."""
    parts = urlsplit(url)
    return f"{parts.netloc}{parts.path}"


def client_context_of(module: LoginModule) -> ssl.SSLContext:
    """Create the TLS context from the ``ssl.*`` options of a login module, as in Kafka.

    Raises:
        BadSettings: An option is invalid.
    """
    options = {"ssl.endpoint.identification.algorithm": "https", **module.options}
    return client_context(lambda name: options.get(name, ""))
