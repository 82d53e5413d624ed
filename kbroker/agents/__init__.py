"""Model Context Protocol (MCP) server: tools of a Kafka cluster for AI agents. Needs `kbroker[mcp]`.

The server is an ordinary client of any Kafka, with the permissions of its user.
"""
