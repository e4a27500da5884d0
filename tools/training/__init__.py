"""Runs of training on their way between machines."""
