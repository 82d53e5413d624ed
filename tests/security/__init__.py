"""Tests of who may connect and how."""
