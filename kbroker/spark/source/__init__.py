"""`format("kbroker")`: a source and a sink for Kafka that need no jar."""
