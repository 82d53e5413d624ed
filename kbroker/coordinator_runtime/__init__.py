"""Coordinator runtime: loads, runs and stores the group, share and transaction coordinators of a node."""
