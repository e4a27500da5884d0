"""The correlation lookup beside its peers."""
