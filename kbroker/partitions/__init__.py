"""The partitions of a node: their logs, their roles and what keeps them in order."""
