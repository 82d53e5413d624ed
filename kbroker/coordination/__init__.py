"""The coordinators of a node: groups and transactions, on their logs."""
