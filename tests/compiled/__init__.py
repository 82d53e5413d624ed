"""kbroker with compiled modules (docs/explanation/performance.md): the same tests, and what only it has."""
