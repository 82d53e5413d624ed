"""One running server."""
