"""One member of the cluster, and what it answers with."""
