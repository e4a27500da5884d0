"""Settings of a run, in a JSON file with its results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fullfield._check import InputError, describe_config_differences
from fullfield._ledger.notes import (
    check_entry_kinds,
    read_json_object,
    round_trip_through_json,
    write_json_file_atomically,
    write_json_file_if_absent,
)

_NAMED_CHANGES = 3


def _return_unchanged(content: Mapping[str, Any]) -> Mapping[str, Any]:
    return content


@dataclass(frozen=True)
class SettingsFile:
    """File with the settings of a run. They bind while there are results.

    Attributes:
        path: The file.
        description: What the file is expected to be, for messages: "the settings of a training".
        subject: What has the settings, for messages; by default the folder of the file.
        entries: Kinds of entries that the content has, as of :func:`check_entry_kinds`.
        select_binding_settings: Returns the part of the content that decides the results.
        parameters_advice: What else a user can do about other parameters of the method, for messages.
    """

    path: Path
    description: str
    subject: str | None = None
    entries: Mapping[str, str] = field(default_factory=dict)
    select_binding_settings: Callable[[Mapping[str, Any]], Mapping[str, Any]] = _return_unchanged
    parameters_advice: str | None = None

    def read_if_exists(self) -> dict[str, Any] | None:
        """Return the stored content; None where there is no file. InputError for anything else than an object."""
        try:
            stored = read_json_object(self.path, self.description)
        except FileNotFoundError:
            return None
        check_entry_kinds(self.path, stored, **self.entries)
        return stored

    def write(self, content: Mapping[str, Any]) -> None:
        """Write the content atomically."""
        write_json_file_atomically(self.path, content)

    def list_changes(self, stored: Mapping[str, Any], content: Mapping[str, Any]) -> list[str]:
        """Return the binding settings that differ, the method first; with another method its parameters differ too."""
        before, now = (
            self.select_binding_settings(stored),
            self.select_binding_settings(round_trip_through_json(content)),
        )
        skipped = {"parameters"} if before.get("method") != now.get("method") else set[str]()
        names = [name for name in dict.fromkeys((*before, *now)) if name not in skipped]
        names.sort(key=lambda name: name != "method")
        return describe_config_differences(
            {name: before.get(name) for name in names}, {name: now.get(name) for name in names}
        )

    def write_or_check_and_return_previous(
        self,
        content: Mapping[str, Any],
        *,
        has_results: Callable[[], bool],
        advice: str,
        overwrite: bool = False,
        lock: Callable[[], AbstractContextManager[object]] = nullcontext,
    ) -> dict[str, Any] | None:
        """Write the settings of a run that begins, or check that the run in the folder has the same.

        Args:
            content: settings, as plain values.
            has_results: returns whether anything was made with the stored settings.
            advice: what a user can do about other settings, for the message.
            overwrite: replace other settings; the caller then makes every result again.
            lock: keeps other processes from storing results while the settings are replaced.

        Returns:
            The stored content before; None where there was none.

        Raises:
            InputError: if there are results of other settings, or results without settings.
        """
        # Results first: a run that begins now writes its settings before its results.
        had_results = has_results()
        stored = self.read_if_exists()
        if stored is None:
            if had_results and not overwrite:
                raise InputError(
                    f"{self._owner_name}: holds files, and no {self.path.name} says how they were made; {advice}"
                )
            write_json_file_if_absent(self.path, content)
        elif self.list_changes(stored, content):
            with lock():
                if overwrite or not has_results():
                    self.write(content)
        self.check_unchanged(content, advice)
        return stored

    def check_unchanged(self, content: Mapping[str, Any], advice: str) -> None:
        """Raise InputError unless the stored settings are these."""
        changes = self.list_changes(self.read_if_exists() or {}, content)
        if changes:
            count = len(changes) - _NAMED_CHANGES
            rest = [f"and {count} more"] if count > 0 else []
            named = "; ".join(changes[:_NAMED_CHANGES] + rest)
            if self.parameters_advice is not None and changes[0].startswith("parameters."):
                advice = f"{self.parameters_advice}, or {advice}"
            raise InputError(f"{self._owner_name}: was begun with other settings ({named}); {advice}")

    @property
    def _owner_name(self) -> str:
        return self.subject or str(self.path.parent)
