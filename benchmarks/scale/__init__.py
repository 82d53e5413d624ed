"""How much one cluster carries: nodes as processes over etcd, and the metadata by itself."""
