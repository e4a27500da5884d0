"""Whole shots from files to files, beside the same pairs estimated alone."""
