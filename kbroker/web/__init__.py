"""HTTP beside Kafka's protocol: probes and metrics. Needs `kbroker[console]`."""
