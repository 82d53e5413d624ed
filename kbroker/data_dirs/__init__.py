"""Offline tools for data directories: inspect, resize, and import from Apache Kafka."""
