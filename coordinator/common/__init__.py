"""Code shared by the group coordinator, the transaction coordinator and the share coordinator."""
