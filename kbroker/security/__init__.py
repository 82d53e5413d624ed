"""Who may connect and how: certificates and TLS. It knows settings, and nothing of nodes."""
