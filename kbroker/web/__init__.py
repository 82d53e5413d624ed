"""HTTP server with the console, probes and metrics. Needs `kbroker[console]`."""

# Client ID with which the console connects to the brokers.
CLIENT_ID = "kbroker-console"
