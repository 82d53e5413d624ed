"""Tests of the modules that a broker loads before a client needs them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

# Modules that a plain broker does not load until it needs them, with the reason for each group.
FORBIDDEN = {
    # OpenSSL: TLS, and hashes of passwords.
    *("_ssl", "_hashlib", "ssl", "hashlib", "hmac", "secrets"),
    # Host names outside ASCII, tasks for child processes.
    *("idna", "pickle"),
    # The package crc32c reads its own version, and has a command line.
    *("crc32c", "importlib.metadata", "email", "zipfile", "csv", "argparse"),
    # Codecs and patterns.
    *("lz4", "snappy", "cramjam", "zstandard", "compression.zstd", "re2"),
    # Console, metrics, schema registry, key stores, tokens, etcd.
    *("hypercorn", "h2", "h11", "starlette", "prometheus_client", "opentelemetry"),
    *("jsonschema", "google.protobuf", "cryptography", "joserfc", "asyncio", "http"),
    # Packages of kbroker with other tasks.
    *("kbroker.web", "kbroker.schemas", "kbroker.testing", "kbroker.pipelines", "kbroker.spark"),
    *("kbroker.kafka_tools", "kbroker.demo", "kbroker.net.tls_transport"),
}
# Runs `kbroker serve`. When it is ready, prints the loaded modules and stops it.
PROGRAM = """
import os, signal, sys, threading
from kbroker.cli import main
from kbroker.runtime.deferred_imports import is_deferred

read, write = os.pipe()

def report():
    with open(read) as ready:
        ready.read()  # until the server closes it
    loaded = [name for name in list(sys.modules) if not is_deferred(name)]
    import json
    print(json.dumps(loaded), file=sys.stderr, flush=True)
    os.kill(os.getpid(), signal.SIGTERM)

threading.Thread(target=report, daemon=True).start()
sys.argv = ["kbroker", "serve", "--port", "0", "--ready-fd", str(write), *sys.argv[1:]]
main()
"""


def loaded_modules(*options: str) -> set[str]:
    """Return the modules that a broker has loaded when it is ready."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *options], capture_output=True, text=True, check=True
    )
    (line,) = (line for line in done.stderr.splitlines() if line.startswith("["))
    return set(json.loads(line))


def test_plain_broker_loads_no_rarely_used_modules(tmp_path: Path) -> None:
    loaded = loaded_modules("--data-dir", str(tmp_path / "data"))
    assert "kbroker.handlers.produce" in loaded
    assert not loaded & FORBIDDEN


def test_broker_with_passwords_loads_hashes_at_start(tmp_path: Path) -> None:
    assert {"hashlib", "_ssl"} - loaded_modules("--memory", "--tls-dev") == set()
