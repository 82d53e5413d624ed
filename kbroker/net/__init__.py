"""Listeners, connections and transports of the Kafka protocol."""
