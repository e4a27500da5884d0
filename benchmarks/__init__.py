"""Measurements that can be repeated: real shapes, peers in the same run, no number without a passing check."""
