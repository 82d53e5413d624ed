"""The files of `kbroker serve --tls-dev`, which lie in a folder of the first data folder."""

from __future__ import annotations

FOLDER = "tls-dev"
AUTHORITY, AUTHORITY_KEY = "ca.pem", "ca.key"
SERVER = "server.pem"
"""The server's certificate and its key."""
PASSWORD = "admin.password"
JAVA, LIBRDKAFKA = "client.properties", "librdkafka.conf"
"""Settings of clients, with the password in them."""
SECRETS = (AUTHORITY_KEY, SERVER, PASSWORD, JAVA, LIBRDKAFKA)
"""What nobody but the owner may read."""
