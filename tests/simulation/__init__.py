"""Whole clusters in one process, from one seed: real node code on simulated machines."""
