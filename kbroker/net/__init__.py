"""What listens, and what comes over a connection."""
