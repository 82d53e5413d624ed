"""Benchmark of a test with its own broker, compared with one Kafka for all tests."""
