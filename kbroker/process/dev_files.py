"""The files of `kbroker serve --tls-dev`, which lie in a directory of the first data directory."""

from __future__ import annotations

DIRECTORY = "tls-dev"
AUTHORITY, AUTHORITY_KEY = "ca.pem", "ca.key"
SERVER = "server.pem"
"""The server's certificate and its key."""
PASSWORD = "admin.password"
JAVA, LIBRDKAFKA = "client.properties", "librdkafka.conf"
"""Settings of clients, with the password in them."""
SECRETS = (AUTHORITY_KEY, SERVER, PASSWORD, JAVA, LIBRDKAFKA)
"""What nobody but the owner may read."""
