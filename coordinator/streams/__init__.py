"""Streams groups (KIP-1071)."""
