"""The partitions of a node: their logs, their roles and their background tasks."""
