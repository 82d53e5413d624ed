"""Prometheus and OTLP metrics of a node, with its own names, kafka_exporter's, and Kafka's JMX names."""
