"""The web console: pages, and the JSON that they are made of."""
