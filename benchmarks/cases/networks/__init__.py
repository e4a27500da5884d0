"""Networks end to end beside ptlflow's, and ptlflow's on our lookups."""
