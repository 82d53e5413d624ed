"""Groups of the classic protocol (KIP-62, KIP-345, KIP-394, KIP-814)."""
