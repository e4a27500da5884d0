"""Base class of configurations."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any, TypeVar

from fullfield import _check

_Config = TypeVar("_Config", bound="Config")


def create_field(default: Any, help: str, choices: tuple[object, ...] | None = None, metavar: str | None = None) -> Any:
    """Return a dataclass field with the description that the command line prints."""
    return field(default=default, metadata={"help": help, "choices": choices, "metavar": metavar})


@dataclass(frozen=True)
class Config:
    """Base of frozen dataclasses whose fields are parameters; an unknown field is an InputError."""

    def __new__(cls, *_: object, **values: object) -> Any:
        for name in values:
            _check.check_choice(name, cls.__name__, [field.name for field in fields(cls)])
        return super().__new__(cls)

    def replace(self: _Config, **changes: Any) -> _Config:
        """Return a copy with other values; an unknown name or a bad value is an InputError."""
        return replace(self, **changes)

    def as_dict(self) -> dict[str, Any]:
        """Return field names and values."""
        return asdict(self)
