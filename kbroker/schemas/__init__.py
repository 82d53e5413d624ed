"""Confluent-compatible schema registry next to the Kafka listeners. Needs `kbroker[registry]`."""

# Client ID of the registry's own Kafka client.
CLIENT_ID = "kbroker-registry"
