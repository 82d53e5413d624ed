"""How the records of a partition come to be on several nodes."""
