"""Coordinator runtime: loads and runs the group, share and transaction coordinators of a node."""
