"""HTTP server with the console, probes and metrics. Needs `kbroker[console]`."""
