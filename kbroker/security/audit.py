"""The audit log: denied requests, authentications, and changes of ACLs, users and quotas.

The logger ``kbroker.audit`` gets denials, failures and changes at INFO, and allowed requests and
successful authentications at DEBUG. Each log record has its values in `fields`; the JSON log
format prints them.

Repeated events cannot fill the disk: within one second the log writes an event once and counts
repetitions. It also only counts events beyond `EVENTS_PER_CLIENT_MAX` per client. The counts are
logged at the end of the second. If the logger is enabled for DEBUG, every event is logged.
"""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Callable, Hashable
from typing import Final, NamedTuple, TypeVar

from kbroker.text.printable import printable

from .acls import AclOperation, Client, Resource, Verdict

# Denials are logged at INFO, allowed requests at DEBUG.
audit_logger = logging.getLogger("kbroker.audit")

WINDOW_SECONDS: Final = 1.0
# Maximum number of different events of one principal and address that are logged per window.
EVENTS_PER_CLIENT_MAX: Final = 20
# Maximum number of pairs of principal and address whose events are logged per window.
CLIENTS_MAX: Final = 100
# Maximum number of characters of a client's name that are logged.
NAME_CHARACTERS_MAX: Final = 256

Fields = dict[str, object]
K = TypeVar("K", bound=Hashable)


class _Event(NamedTuple):
    sentence: str
    fields: Fields


class Audit:
    """Writer of the audit log of one node.

    Args:
        now: Monotonic clock in seconds.
        on_first_count: Called when the first event of a window is counted, to schedule a call
            of `log_counts`.
    """

    def __init__(
        self, now: Callable[[], float], on_first_count: Callable[[], None] = lambda: None
    ) -> None:
        self._now = now
        self._on_first_count = on_first_count
        self._began_at = -math.inf
        self._logged: dict[Hashable, _Event] = {}
        self._repeated: Counter[Hashable] = Counter()
        self._logged_by_client: Counter[tuple[str, str]] = Counter()
        self._suppressed: Counter[tuple[str, str]] = Counter()

    # -- events

    def log_decision(
        self,
        verdict: Verdict,
        client: Client,
        operation: AclOperation,
        resource: Resource,
        level: int,
        **request: str | int,
    ) -> None:
        """Log that a request was allowed or denied.

        Args:
            verdict: The decision and its reason.
            client: Principal and address of the client.
            operation: The requested operation.
            resource: The resource of the request.
            level: Log level.
            **request: The API, its version and the client ID.
        """
        outcome = "allowed" if verdict.allowed else "denied"
        name, who = _shorten(resource.name), _shorten(str(client.principal))
        self._log_once(
            level,
            (client, operation, resource.type, name),
            f"{outcome}: {who} at {client.host}, {operation.name} on {resource._replace(name=name)}, for "
            f"{request['api']} {request['version']} of client {str(request['client_id'])!r} ({verdict})",
            {
                "outcome": outcome,
                "principal": who,
                "host": client.host,
                "operation": operation.name,
                "resource_type": resource.type.name,
                "resource": name,
                "rule": str(verdict),
                **request,
            },
        )

    def log_authentication(self, client: Client, listener: str, method: str) -> None:
        """Log a successful authentication.

        Args:
            client: Principal and address of the client.
            listener: Name of the listener.
            method: The SASL mechanism, or a phrase such as "certificate".
        """
        self._log_once(
            logging.DEBUG,
            None,
            f"authenticated: {client}, by {method} at listener {listener}",
            _authentication_fields(
                "authenticated", str(client.principal), client.host, listener, method
            ),
        )

    def log_authentication_failure(
        self, host: str, listener: str, method: str, who: str, reason: str
    ) -> None:
        """Log a failed authentication.

        Args:
            host: Address of the client.
            listener: Name of the listener.
            method: The SASL mechanism, or the other way of authentication.
            who: Name that the client claimed, or empty.
            reason: Reason of the failure.
        """
        who, method = _shorten(who), _shorten(method) or "no mechanism"
        named = f" as {who!r}" if who else ""
        self._log_once(
            logging.INFO,
            ("authentication failed", host, listener, method, who),
            f"authentication failed: client at {host}{named}, by {method} at listener {listener}: {reason}",
            _authentication_fields(
                "authentication failed", f"User:{who}" if who else "", host, listener, method
            )
            | {"rule": reason},
        )

    def log_change(self, client: Client, description: str, **fields: object) -> None:
        """Log a change of ACLs, users or quotas; never suppressed."""
        shown = {"outcome": "changed", "principal": str(client.principal), "host": client.host}
        self._log(
            logging.INFO,
            f"changed: {client}: {description}",
            {**shown, "change": description, **fields},
        )

    # -- suppression of repeated events

    def _log_once(self, level: int, key: Hashable, sentence: str, fields: Fields) -> None:
        if not audit_logger.isEnabledFor(level):
            return
        if level <= logging.DEBUG or audit_logger.isEnabledFor(logging.DEBUG):
            self._log(level, sentence, fields)
            return
        now = self._now()
        if now - self._began_at >= WINDOW_SECONDS:
            self.log_counts()
            self._began_at = now
        client = (str(fields["principal"]), str(fields["host"]))
        if key in self._logged:
            self._count(self._repeated, key)
        elif self._may_log(client):
            self._logged_by_client[client] += 1
            self._logged[key] = _Event(sentence, fields)
            self._log(level, sentence, fields)
        else:
            known = client in self._suppressed or len(self._suppressed) < CLIENTS_MAX
            self._count(self._suppressed, client if known else ("other principals", "other hosts"))

    def _may_log(self, client: tuple[str, str]) -> bool:
        if client not in self._logged_by_client and len(self._logged_by_client) >= CLIENTS_MAX:
            return False
        return self._logged_by_client[client] < EVENTS_PER_CLIENT_MAX

    def _count(self, counts: Counter[K], key: K) -> None:
        if not self._repeated and not self._suppressed:
            self._on_first_count()
        counts[key] += 1

    def log_counts(self) -> None:
        """Log the counts of the current window, and start a new window."""
        for key, count in self._repeated.items():
            sentence, fields = self._logged[key]
            self._log(logging.INFO, f"{count} times more, {sentence}", {**fields, "count": count})
        for (principal, host), count in self._suppressed.items():
            self._log(
                logging.INFO,
                f"{count} more events of {principal} at {host} were not logged one by one",
                {"outcome": "suppressed", "principal": principal, "host": host, "count": count},
            )
        for counts in (self._logged, self._repeated, self._logged_by_client, self._suppressed):
            counts.clear()

    def _log(self, level: int, sentence: str, fields: Fields) -> None:
        audit_logger.log(level, "%s", printable(sentence), extra={"fields": fields})


def _authentication_fields(
    outcome: str, principal: str, host: str, listener: str, method: str
) -> Fields:
    return {
        "outcome": outcome,
        "principal": _shorten(principal),
        "host": host,
        "operation": "LOGIN",
        "listener": listener,
        "mechanism": method,
    }


def _shorten(name: str) -> str:
    if len(name) <= NAME_CHARACTERS_MAX:
        return name
    return f"{name[:NAME_CHARACTERS_MAX]}... ({len(name)} characters)"
