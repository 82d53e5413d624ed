"""Authentication, authorization, TLS and quotas; independent of broker nodes."""
