"""Ledger of a run that can be stopped and resumed: the settings that made its files, and a record of each file.

- ``notes``: JSON files of notes, checked as they are read and written atomically
- ``settings``: the settings of a run; other settings are refused while there are results
- ``versions``: versions of files, by size, times and checksum
- ``records``: what made each file, appended by every process to a file of its own

Shots, evaluations, trainings and sets of synthetic pairs use it.
"""
