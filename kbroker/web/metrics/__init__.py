"""What a node tells Prometheus: its own names, kafka_exporter's, and those of Kafka's JMX beans."""
