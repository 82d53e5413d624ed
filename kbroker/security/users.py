"""Who may log in at a listener, by which mechanism, as Kafka's settings say it.

``sasl.enabled.mechanisms`` has the mechanisms, ``sasl.jaas.config`` the users of each, with the
listener's prefix and the mechanism's: ``listener.name.NAME.MECHANISM.sasl.jaas.config``.
"""

from __future__ import annotations

import hmac
import secrets
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from .delegation import ScramLogin, TokenUsers
from .errors import BadSettings
from .jaas import BadJaas, LoginModule, Lookup, jaas_text, parse_jaas, parse_modules
from .login import Exchange
from .oauth import OAuthServer
from .scram import (
    ScramCredential,
    ScramMechanism,
    ScramServer,
    ScramUser,
    Shape,
    credential_of,
    salt_of,
)

if TYPE_CHECKING:
    from .tokens import Tokens

PLAIN: Final = "PLAIN"
OAUTHBEARER: Final = "OAUTHBEARER"
SERVED = (PLAIN, *ScramMechanism, OAUTHBEARER)
"""In the order in which clients are told of them."""
_MODULES = {
    PLAIN: "PlainLoginModule",
    ScramMechanism.SHA_256: "ScramLoginModule",
    ScramMechanism.SHA_512: "ScramLoginModule",
    OAUTHBEARER: "OAuthBearerLoginModule",
}
_TOKEN_HANDLERS = (
    "org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallbackHandler",
    "org.apache.kafka.common.security.oauthbearer.secured.OAuthBearerValidatorCallbackHandler",
)
"""What Kafka is told to check tokens with, and was before 3.4."""
_OF_MECHANISMS = (
    "sasl.jaas.config",
    "connections.max.reauth.ms",
    "sasl.server.callback.handler.class",
)


class StoredUsers(Protocol):
    """SCRAM users who are made while nodes run, and known to all of them (KIP-554)."""

    @property
    def secret(self) -> bytes:
        """Secret of the cluster for salts of configured and unknown users; empty without a node."""
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
    texts = tuple(setting(name, mechanism) for name in _OF_MECHANISMS for mechanism in SERVED)
    mechanisms = setting("sasl.enabled.mechanisms", None)
    if OAUTHBEARER in mechanisms:
        from .tokens import asked  # most nodes never need it

        texts += asked(setting)
    return mechanisms, *texts


class Users:
    """Who may log in at one listener. Raises BadSettings.

    Parameters: `setting` finds the listener's settings; `stored` are users beside those of them, who
    come first, and `delegation` those who show delegation tokens, once there are nodes that could know
    them.

    Nobody of the settings can before `prepare`, which takes some milliseconds for each user and may run in a thread.
    """

    def __init__(
        self,
        setting: Lookup,
        stored: Callable[[], StoredUsers | None] = lambda: None,
        delegation: Callable[[], TokenUsers | None] = lambda: None,
    ) -> None:
        self.asked = asked(setting)
        self._stored = stored
        self._delegation = delegation
        wanted = [each.strip() for each in setting("sasl.enabled.mechanisms", None).split(",")]
        self.mechanisms = tuple(each for each in SERVED if each in wanted)
        if not self.mechanisms:
            raise BadSettings(
                f"sasl.enabled.mechanisms={','.join(wanted)}: there are {', '.join(SERVED)}"
            )
        for each in self.mechanisms:
            _check_handler(each, setting("sasl.server.callback.handler.class", each))
        self._session_ms = {
            each: int(setting("connections.max.reauth.ms", each)) for each in self.mechanisms
        }
        self._secret = secrets.token_bytes(32)
        self._modules = {each: _module(each, setting) for each in self.mechanisms}
        self.has_own = any(each.users for each in self._modules.values())
        """Return True if the settings define users."""
        self._passwords = Passwords({})
        self._credentials: dict[tuple[ScramMechanism, str], ScramCredential] = {}
        self.tokens: Tokens | None = None
        """What is asked of tokens, where users come with such."""
        if OAUTHBEARER in self.mechanisms:
            from .tokens import Tokens

            self.tokens = Tokens(setting, self._modules[OAUTHBEARER])

    def prepare(self) -> None:
        """Make the hashes by which users are known.

        Their salts are the same on all nodes of the cluster, so call it once the secret is there.
        """
        modules, secret = self._modules, self._salt_secret
        self._passwords = Passwords(modules[PLAIN].users if PLAIN in modules else {})
        self._credentials = {
            (mechanism, name): credential_of(mechanism, password, salt=salt_of(secret, name))
            for mechanism in ScramMechanism
            if mechanism in modules
            for name, password in modules[mechanism].users.items()
        }
        self._modules = {}

    @property
    def _salt_secret(self) -> bytes:
        stored = self._stored()
        return (b"" if stored is None else stored.secret) or self._secret

    def session_seconds(self, mechanism: str) -> float | None:
        """How long a login is good at most (KIP-368); None: as long as the connection lives."""
        return self._session_ms[mechanism] / 1000 or None

    def exchange(self, mechanism: str) -> Exchange:
        """A new login by one of the `mechanisms`."""
        if mechanism == PLAIN:
            from .plain import PlainServer

            return PlainServer(self._passwords.knows)
        if mechanism == OAUTHBEARER:
            assert self.tokens is not None
            return OAuthServer(self.tokens)
        tokens = self._delegation()
        server = self._scram_server(ScramMechanism(mechanism), self._stored(), tokens)
        return ScramLogin(server, tokens)

    def _scram_server(
        self, mechanism: ScramMechanism, stored: StoredUsers | None, tokens: TokenUsers | None
    ) -> ScramServer:
        def find(user: ScramUser) -> ScramCredential | None:
            if user.is_token:
                token = tokens.shown(user.name) if tokens else None
                return None if token is None else token.credentials.get(mechanism)
            known = None if stored is None else stored.find(mechanism, user.name)
            return known or self._credentials.get((mechanism, user.name))

        shapes = set() if stored is None else {*stored.shapes(mechanism)}
        if any(of is mechanism for of, _ in self._credentials):
            shapes.add(Shape())
        return ScramServer(mechanism, find, self._salt_secret, shapes=shapes)


def _module(mechanism: str, setting: Lookup) -> LoginModule:
    text = setting("sasl.jaas.config", mechanism)
    if not text:
        return LoginModule(_MODULES[mechanism], {})
    try:
        module = module_of(mechanism, text)
    except BadJaas as error:
        raise BadSettings(f"sasl.jaas.config of {mechanism}: {error}") from None
    if module.short_name != _MODULES[mechanism]:
        raise BadSettings(
            f"sasl.jaas.config of {mechanism} names {module.name}; kbroker knows "
            f"{_MODULES[mechanism]}"
        )
    if any(name.startswith("unsecured") for name in module.options):
        raise BadSettings(
            f"sasl.jaas.config of {mechanism}: kbroker takes no unsecured tokens, leave out the options "
            "that begin with unsecured"
        )
    return module


def module_of(mechanism: str, text: str) -> LoginModule:
    """Return the login module of a mechanism: the only one, or of several the one of its class.

    Several stand in the setting of all listeners, as in a section of Java's login file.

    Raises:
        BadJaas: The text cannot be read.
    """
    name = _MODULES[mechanism]
    modules = parse_modules(text)
    if len(modules) <= 1:
        return parse_jaas(text)
    return next((each for each in modules if each.short_name == name), LoginModule(name, {}))


def only_module(mechanism: str, text: str) -> str:
    """Return the part of a `sasl.jaas.config` that is for a mechanism; an unreadable text as it is."""
    if mechanism not in _MODULES:
        return text
    try:
        module = module_of(mechanism, text)
    except BadJaas:
        return text
    return jaas_text(module.name, module.options)


def _check_handler(mechanism: str, name: str) -> None:
    """Raise BadSettings where logins are to be checked by a class that is not here."""
    known = _TOKEN_HANDLERS if mechanism == OAUTHBEARER else ()
    if name and name not in known:
        instead = f", or name {known[0]}" if known else ""
        raise BadSettings(
            f"sasl.server.callback.handler.class of {mechanism} names {name}, which is no part of "
            f"kbroker: leave it out{instead}"
        )
