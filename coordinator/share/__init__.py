"""Share groups, the delivery of their records, and the share coordinator (KIP-932)."""
