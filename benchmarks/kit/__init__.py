"""What a test of Kafka software costs, with a broker of its own and with a Kafka for all of them."""
