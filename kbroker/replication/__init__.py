"""Replication of partitions between nodes."""
