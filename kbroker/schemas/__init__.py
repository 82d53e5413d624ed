"""A schema registry beside Kafka's protocol, as Confluent's clients know it. Needs `kbroker[registry]`."""

CLIENT_ID = "kbroker-registry"
"""As which it asks nodes."""
