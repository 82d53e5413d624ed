"""A small test of an installed kbroker, by its own Python: every dependency does its work once.

Usage: python smoke.py FOLDER, an empty one. Prints the versions of what it used.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from importlib.metadata import distributions
from pathlib import Path

KBROKER = [sys.executable, "-m", "kbroker"]
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
SECONDS = 60
PLUGIN_TEST = """
def test_a_broker_of_its_own(kbroker):
    kbroker.create_topic("orders")
    kbroker.produce("orders", b"x")
    assert len(kbroker.wait_for("orders", count=1)) == 1
"""


def run(*command: str, stdin: str = "", environment: dict[str, str] | None = None) -> str:
    """Run a command; returns what it printed. Raises CalledProcessError."""
    done = subprocess.run(
        [*command],
        input=stdin,
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=SECONDS,
        env=os.environ | (environment or {}),
    )
    return done.stdout


def served(folder: Path, *flags: str) -> tuple[subprocess.Popen[str], dict[str, object]]:
    """A server that is ready, and its ready event."""
    port_file = folder / "port.json"
    words = ["serve", "--port", "0", "--port-file", str(port_file), *flags]
    process = subprocess.Popen([*KBROKER, *words], text=True, stdout=subprocess.DEVNULL)
    give_up = time.monotonic() + SECONDS
    while not port_file.exists():
        assert process.poll() is None, f"it ended with {process.returncode}"
        assert time.monotonic() < give_up, "it is not ready"
        time.sleep(0.05)
    return process, json.loads(port_file.read_text())


def stopped(process: subprocess.Popen[str]) -> None:
    """Stop a server in order."""
    process.send_signal(signal.SIGTERM)
    assert process.wait(SECONDS) == 0


def records_come_back(folder: Path) -> None:
    """In every codec, also after a restart, for members of a group, and with a pattern of names."""
    data = str(folder / "data")
    process, ready = served(folder, "--data-dir", data)
    environment = {"KBROKER_BOOTSTRAP": str(ready["bootstrap_servers"])}
    for codec in CODECS:
        words = ("topic", "produce", f"codec-{codec}", "-z", codec, "-q")
        run(*KBROKER, "topic", "create", f"codec-{codec}", environment=environment)
        run(*KBROKER, *words, stdin=f"{codec} {codec}\n" * 50, environment=environment)
    stopped(process)
    process, ready = served(folder, "--data-dir", data)
    environment = {"KBROKER_BOOTSTRAP": str(ready["bootstrap_servers"])}
    asked = ("topic", "consume", "-r", "codec-.*", "-o", ":end", "-f", r"%v\n", "-g", "readers")
    read = run(*KBROKER, *asked, environment=environment).splitlines()
    assert sorted(read) == sorted(f"{codec} {codec}" for codec in CODECS for _ in range(50))
    server = ("--bootstrap-server", environment["KBROKER_BOOTSTRAP"])
    assert "codec-zstd" in run(*KBROKER, "compat", "kafka-topics", *server, "--list")
    stopped(process)


def a_secured_one_answers(folder: Path) -> None:
    """TLS and a login, made at the start."""
    process, ready = served(folder, "--memory", "--tls-dev")
    settings = Path(str(ready["tls_dev"])) / "client.properties"
    server = ("--bootstrap-server", str(ready["bootstrap_servers"]))
    topics = ("compat", "kafka-topics", *server, "--command-config", str(settings))
    run(*KBROKER, *topics, "--create", "--topic", "secret")
    assert run(*KBROKER, *topics, "--list") == "secret\n"
    stopped(process)


def patterns_are_understood() -> None:
    """Names of topics by RE2, which consumers of KIP-848 subscribe to."""
    import re2

    assert re2.fullmatch("a.*c", "abc")


def the_plugin_is_found(folder: Path) -> None:
    """The pytest plugin, where there is pytest."""
    (folder / "test_plugin.py").write_text(PLUGIN_TEST)
    run(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(folder))


def main() -> None:
    """Run all of it."""
    folder = Path(sys.argv[1])
    assert run(*KBROKER, "--version").startswith("kbroker ")
    records_come_back(folder)
    a_secured_one_answers(folder)
    patterns_are_understood()
    the_plugin_is_found(folder)
    print(*sorted(f"{each.name}=={each.version}" for each in distributions()))


main()
