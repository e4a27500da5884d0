"""The ``fullfield`` command. One module per verb; each loads the library only when its verb runs."""
