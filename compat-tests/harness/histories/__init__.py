"""Random histories of requests, compared between kbroker and Apache Kafka. One module per area."""
