"""Benchmark of the correlation lookup and its peers."""
