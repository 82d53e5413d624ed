"""HTTP beside Kafka's protocol: the console, probes and metrics. Needs `kbroker[console]`."""
