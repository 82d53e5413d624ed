"""Simulated machines with their own network stacks, and a network between them that can fail.

Each machine is a network namespace with one link to a router namespace. The router forwards packets
and drops those between cut machines without a notification, like a broken network. Linux and root
permissions are required.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterable, Sequence
from itertools import product

from ..machine import Machine


class NoNetwork(Exception):
    """Networks cannot be created on this system; the message has the reason."""


class Network:
    """Machines, and the test's own end of the network. Call `close` at the end.

    Args:
        count: Number of machines.

    Raises:
        NoNetwork: This system does not permit it.
    """

    def __init__(self, count: int) -> None:
        self._prefix = f"kb{os.getpid()}"
        self._second = 64 + os.getpid() % 128
        self._router = f"{self._prefix}-router"
        self._machines = range(1, count + 1)  # 0 is the test itself
        self._dropped: set[tuple[Machine, Machine]] = set()
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def _make(self) -> None:
        _ip("netns", "add", self._router)
        forward = "echo 1 > /proc/sys/net/ipv4/ip_forward"
        _ip("netns", "exec", self._router, "sh", "-c", forward)
        own = f"{self._prefix}-test"
        _ip("link", "add", own, "type", "veth", "peer", "name", "to0", "netns", self._router)
        self._join(0, own, ())
        _ip("route", "add", f"10.{self._second}.0.0/16", "via", self._gateway(0))
        for number in self._machines:
            name = self._name(number)
            _ip("netns", "add", name)
            ends = ("link0", "netns", name), (f"to{number}", "netns", self._router)
            _ip("link", "add", *ends[0], "type", "veth", "peer", "name", *ends[1])
            self._join(number, "link0", ("-n", name))
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "route", "add", "default", "via", self._gateway(number))

    def _join(self, number: int, link: str, namespace: Sequence[str]) -> None:
        """Assign addresses to both ends of a machine's link."""
        _ip(*namespace, "address", "add", f"{self._address(number)}/30", "dev", link)
        _ip(*namespace, "link", "set", link, "up")
        router = ("-n", self._router)
        _ip(*router, "address", "add", f"{self._gateway(number)}/30", "dev", f"to{number}")
        _ip(*router, "link", "set", f"to{number}", "up")

    def _name(self, number: int) -> str:
        return f"{self._prefix}-{number}"

    def _gateway(self, number: int) -> str:
        return f"10.{self._second}.{number}.1"

    def _address(self, number: int) -> str:
        return f"10.{self._second}.{number}.2"

    @property
    def machines(self) -> list[Machine]:
        """Return all machines in order."""
        return [
            Machine(self._address(number), ("ip", "netns", "exec", self._name(number)))
            for number in self._machines
        ]

    def drop(self, sources: Iterable[Machine], targets: Iterable[Machine]) -> None:
        """Drop all packets from sources to targets, until `heal`."""
        for source, target in product(sources, targets):
            if (source, target) not in self._dropped:
                self._dropped.add((source, target))
                self._rule("add", source, target)

    def cut(self, first: Sequence[Machine], second: Sequence[Machine]) -> None:
        """Drop all packets between two sets of machines, until `heal`."""
        self.drop(first, second)
        self.drop(second, first)

    def heal(self) -> None:
        """Remove all cuts."""
        while self._dropped:
            self._rule("del", *self._dropped.pop())

    def _rule(self, verb: str, source: Machine, target: Machine) -> None:
        arguments = ("from", source.address, "to", target.address, "priority", "100", "blackhole")
        _ip("-n", self._router, "rule", verb, *arguments)

    def close(self) -> None:
        """Delete all namespaces. Running processes keep theirs until they end."""
        for name in [self._router, *map(self._name, self._machines)]:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNetwork(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
