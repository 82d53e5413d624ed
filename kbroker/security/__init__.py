"""Who may connect and how: certificates, TLS, logins. It knows settings, and nothing of nodes."""
