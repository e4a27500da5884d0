"""Operators, one package each, and what they share."""
