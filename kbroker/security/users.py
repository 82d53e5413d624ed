"""Who may log in at a listener, by which mechanism, as Kafka's settings say it.

``sasl.enabled.mechanisms`` has the mechanisms, ``sasl.jaas.config`` the users of each, with the
listener's prefix and the mechanism's: ``listener.name.NAME.MECHANISM.sasl.jaas.config``.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol, TypeAlias

from .errors import BadSettings
from .jaas import BadJaas, LoginModule, parse_jaas
from .login import Exchange, Login
from .scram import (
    ScramCredential,
    ScramMechanism,
    ScramServer,
    ScramUser,
    Shape,
    credential_of,
)

PLAIN: Final = "PLAIN"
SERVED = (PLAIN, *ScramMechanism)
"""In the order in which clients are told of them."""
_MODULES = {
    PLAIN: "PlainLoginModule",
    ScramMechanism.SHA_256: "ScramLoginModule",
    ScramMechanism.SHA_512: "ScramLoginModule",
}

Lookup: TypeAlias = Callable[[str, str | None], str]
"""The text of a listener's setting, of one mechanism if that is named; empty when it is not set."""


class StoredUsers(Protocol):
    """SCRAM users who are made while nodes run, and known to all of them (KIP-554)."""

    @property
    def secret(self) -> bytes:
        """What users are pretended with; empty as long as there never was one of these."""
        ...

    def find(self, mechanism: ScramMechanism, name: str) -> ScramCredential | None:
        """The credential of a user; None when there is none."""
        ...

    def shapes(self, mechanism: ScramMechanism) -> Sequence[Shape]:
        """What their credentials look like from outside."""
        ...


class Passwords:
    """Passwords of PLAIN, of which only salted hashes are kept.

    They come from a file that has them as they are, so that a quick hash is enough: it keeps them out
    of dumps of memory, and the time of a comparison from telling anything.
    """

    def __init__(self, passwords: Mapping[str, str]) -> None:
        self._key = secrets.token_bytes(32)
        self._hashes = {name: self._hash(text) for name, text in passwords.items()}

    def knows(self, name: str, password: str) -> bool:
        """Whether that is the password of that user; takes as long for a user whom there is not."""
        made = self._hash(password)
        known = self._hashes.get(name)
        return hmac.compare_digest(made, known or self._key) and known is not None

    def _hash(self, password: str) -> bytes:
        return hmac.digest(self._key, password.encode(), "sha256")


def asked(setting: Lookup) -> tuple[str, ...]:
    """What the settings of logins say; the same where nothing is to change."""
    modules = (setting("sasl.jaas.config", mechanism) for mechanism in SERVED)
    return setting("sasl.enabled.mechanisms", None), *modules


class Users:
    """Who may log in at one listener. Raises BadSettings.

    Parameters: `setting` finds the listener's settings; `stored` are users beside those of them, who
    come first, once there are nodes that could know them.

    Nobody of the settings can before `prepare`, which takes some milliseconds for each user and may run in a thread.
    """

    def __init__(
        self, setting: Lookup, stored: Callable[[], StoredUsers | None] = lambda: None
    ) -> None:
        self.asked = asked(setting)
        self._stored = stored
        wanted = [each.strip() for each in setting("sasl.enabled.mechanisms", None).split(",")]
        self.mechanisms = tuple(each for each in SERVED if each in wanted)
        if not self.mechanisms:
            raise BadSettings(
                f"sasl.enabled.mechanisms={','.join(wanted)}: there are {', '.join(SERVED)}"
            )
        self._secret = secrets.token_bytes(32)
        self._modules = {each: _module(each, setting) for each in self.mechanisms}
        self._passwords = Passwords({})
        self._credentials: dict[tuple[ScramMechanism, str], ScramCredential] = {}

    def prepare(self) -> None:
        """Make the hashes by which users are known."""
        modules = self._modules
        self._passwords = Passwords(modules[PLAIN].users if PLAIN in modules else {})
        self._credentials = {
            (mechanism, name): credential_of(mechanism, password)
            for mechanism in ScramMechanism
            if mechanism in modules
            for name, password in modules[mechanism].users.items()
        }
        self._modules = {}

    def login(self) -> Login:
        """That of a new connection."""
        return Login(self)

    def exchange(self, mechanism: str) -> Exchange:
        """A new login by one of the `mechanisms`."""
        if mechanism == PLAIN:
            from .plain import PlainServer

            return PlainServer(self._passwords.knows)
        return self._scram_server(ScramMechanism(mechanism), self._stored())

    def _scram_server(self, mechanism: ScramMechanism, stored: StoredUsers | None) -> ScramServer:
        def find(user: ScramUser) -> ScramCredential | None:
            if user.is_token:
                return None
            known = stored.find(mechanism, user.name) if stored else None
            return known or self._credentials.get((mechanism, user.name))

        secret = (stored.secret if stored else b"") or self._secret
        shapes = {*stored.shapes(mechanism)} if stored else set()
        if any(of is mechanism for of, _ in self._credentials):
            shapes.add(Shape())
        return ScramServer(mechanism, find, secret, shapes=shapes)


def _module(mechanism: str, setting: Lookup) -> LoginModule:
    text = setting("sasl.jaas.config", mechanism)
    if not text:
        return LoginModule(_MODULES[mechanism], {})
    try:
        module = parse_jaas(text)
    except BadJaas as error:
        raise BadSettings(f"sasl.jaas.config of {mechanism}: {error}") from None
    if module.short_name != _MODULES[mechanism]:
        raise BadSettings(
            f"sasl.jaas.config of {mechanism} names {module.name}; kbroker knows "
            f"{_MODULES[mechanism]}"
        )
    return module
