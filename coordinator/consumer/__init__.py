"""Consumer groups (KIP-848), and their conversion from and to classic groups."""
