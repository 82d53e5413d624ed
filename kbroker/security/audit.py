"""The audit log: who was denied what, and from where; who came in; who changed who may.

All of it goes to the logger ``kbroker.audit``: what was denied, failed or changed at INFO, what was
allowed at DEBUG. Each record has its parts in `fields`, which logs of JSON show, beside the sentence.

What clients ask for again and again does not fill the disk: within a second the same thing is told once
and then counted, and so is what a client asks for beyond `OF_CLIENT_MAX` different things. What was
counted is told when the second is over. This holds for INFO; who asks for DEBUG gets everything.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple, TypeVar

from kbroker.text.printable import printable

from .acls import AclOperation, Client, Resource, Verdict

audit_logger = logging.getLogger("kbroker.audit")
"""What was denied at INFO, what was allowed at DEBUG."""

WINDOW_SECONDS: Final = 1.0
OF_CLIENT_MAX: Final = 20
"""Different things of one principal and address that are told in one window."""
CLIENTS_MAX: Final = 100
"""Principals and addresses of which things are told in one window."""
NAME_CHARACTERS_MAX: Final = 256
"""Of a name that a client chose."""

Fields = dict[str, object]
K = TypeVar("K", bound=Hashable)


class _Told(NamedTuple):
    sentence: str
    fields: Fields


class Audit:
    """Writes the audit log of one node.

    Parameters: `now` is a steady time in seconds; `when_counting` is called when there is something
    counted for the first time, so that `sum_up` is called a while later.
    """

    def __init__(
        self, now: Callable[[], float], when_counting: Callable[[], None] = lambda: None
    ) -> None:
        self._now = now
        self._when_counting = when_counting
        self._began_at = -math.inf
        self._told: dict[Hashable, _Told] = {}
        self._again: Counter[Hashable] = Counter()
        self._of_client: Counter[tuple[str, str]] = Counter()
        self._beyond: Counter[tuple[str, str]] = Counter()

    # -- what happens

    def decided(
        self,
        verdict: Verdict,
        client: Client,
        operation: AclOperation,
        resource: Resource,
        level: int,
        **asked: str | int,
    ) -> None:
        """Somebody was allowed something, or denied it.

        Parameters: `asked` are the API, its version and the client id.
        """
        outcome = "allowed" if verdict.allowed else "denied"
        name, who = _short(resource.name), _short(str(client.principal))
        self._tell(
            level,
            (client, operation, resource.type, name),
            f"{outcome}: {who} at {client.host}, {operation.name} on {resource._replace(name=name)}, for "
            f"{asked['api']} {asked['version']} of client {str(asked['client_id'])!r} ({verdict})",
            {
                "outcome": outcome,
                "principal": who,
                "host": client.host,
                "operation": operation.name,
                "resource_type": resource.type.name,
                "resource": name,
                "rule": str(verdict),
                **asked,
            },
        )

    def came_in(self, client: Client, listener: str, how: str) -> None:
        """Somebody has shown who it is; `how` is the mechanism, or a certificate."""
        self._tell(
            logging.DEBUG,
            None,
            f"came in: {client}, by {how} at listener {listener}",
            _login("came in", str(client.principal), client.host, listener, how),
        )

    def kept_out(self, host: str, listener: str, how: str, who: str, why: str) -> None:
        """Somebody has not shown who it is; `who` is the name that it gave, if it did."""
        who, how = _short(who), _short(how) or "no mechanism"
        named = f" as {who!r}" if who else ""
        self._tell(
            logging.INFO,
            ("kept out", host, listener, how, who),
            f"kept out: somebody at {host}{named}, by {how} at listener {listener}: {why}",
            _login("kept out", f"User:{who}" if who else "", host, listener, how) | {"rule": why},
        )

    def changed(self, client: Client, what: str, **fields: object) -> None:
        """Somebody has changed who may do what, or who can log in. Each change is told."""
        shown = {"outcome": "changed", "principal": str(client.principal), "host": client.host}
        self._log(
            logging.INFO,
            f"changed: {client}: {what}",
            {**shown, "change": what, **fields},
        )

    # -- how it is told

    def _tell(self, level: int, key: Hashable, sentence: str, fields: Fields) -> None:
        if not audit_logger.isEnabledFor(level):
            return
        if level <= logging.DEBUG or audit_logger.isEnabledFor(logging.DEBUG):
            self._log(level, sentence, fields)
            return
        now = self._now()
        if now - self._began_at >= WINDOW_SECONDS:
            self.sum_up()
            self._began_at = now
        client = (str(fields["principal"]), str(fields["host"]))
        if key in self._told:
            self._count(self._again, key)
        elif self._may_be_told(client):
            self._of_client[client] += 1
            self._told[key] = _Told(sentence, fields)
            self._log(level, sentence, fields)
        else:
            known = client in self._beyond or len(self._beyond) < CLIENTS_MAX
            self._count(self._beyond, client if known else ("others", "elsewhere"))

    def _may_be_told(self, client: tuple[str, str]) -> bool:
        if client not in self._of_client and len(self._of_client) >= CLIENTS_MAX:
            return False
        return self._of_client[client] < OF_CLIENT_MAX

    def _count(self, counts: Counter[K], key: K) -> None:
        if not self._again and not self._beyond:
            self._when_counting()
        counts[key] += 1

    def sum_up(self) -> None:
        """Tell what was counted, and begin anew."""
        for key, count in self._again.items():
            sentence, fields = self._told[key]
            self._log(logging.INFO, f"{count} times more, {sentence}", {**fields, "count": count})
        for (principal, host), count in self._beyond.items():
            self._log(
                logging.INFO,
                f"{count} more of {principal} at {host} that are not told one by one",
                {"outcome": "not told", "principal": principal, "host": host, "count": count},
            )
        for kept in (self._told, self._again, self._of_client, self._beyond):
            kept.clear()

    def _log(self, level: int, sentence: str, fields: Fields) -> None:
        audit_logger.log(level, "%s", printable(sentence), extra={"fields": fields})


def _login(outcome: str, principal: str, host: str, listener: str, how: str) -> Fields:
    return {
        "outcome": outcome,
        "principal": _short(principal),
        "host": host,
        "operation": "LOGIN",
        "listener": listener,
        "mechanism": how,
    }


def _short(name: str) -> str:
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    return f"{name[:NAME_CHARACTERS_MAX]}... ({len(name)} characters)"
