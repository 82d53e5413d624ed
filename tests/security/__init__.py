"""Tests of authentication, authorization and TLS."""
