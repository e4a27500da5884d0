"""Experiments: programs that judge data, constants and tests. They are run by hand, not by CI."""
