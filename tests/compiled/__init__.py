"""kbroker with compiled modules (docs/performance.md): the same tests, and what only it has."""
