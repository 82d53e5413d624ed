"""Side by side with Apache Kafka: one command, one table (`python -m benchmarks --help`)."""
