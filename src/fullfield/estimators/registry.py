"""The methods by name. Light: imports neither torch nor numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from fullfield._check import InputError, nearest
from fullfield.estimators.network_config import PREFIX

PTLFLOW = f"{PREFIX}NAME"
"""Stands for every model of ptlflow."""


@dataclass(frozen=True)
class Method:
    """What a method is called and where its configuration lives.

    A configuration is a frozen dataclass with a default for every field and
    ``metadata={"help": ..., "choices": ..., "metavar": ...}``; ``presets`` is a mapping beside it. Importing its
    module must stay cheap.
    """

    title: str
    module: str
    config: str
    presets_name: str = "PRESETS"

    def load(self) -> Any:
        """The configuration's class."""
        return getattr(import_module(self.module), self.config)

    def presets(self) -> Mapping[str, Any]:
        """The configurations by name of preset."""
        presets: Mapping[str, Any] = getattr(import_module(self.module), self.presets_name)
        return presets


_NETWORK = "fullfield.estimators.network_config"

METHODS = {
    "tvl1": Method("TV-L1", "fullfield.ops.tvl1.config", "TVL1Config"),
    "auto": Method("auto", _NETWORK, "NetworkConfig"),
    "fullfield-s": Method("fullfield-s", _NETWORK, "NetworkConfig"),
    "raft": Method("RAFT", _NETWORK, "RAFTEstimatorConfig", "RAFT_PRESETS"),
    "raft-small": Method("RAFT-small", _NETWORK, "RAFTEstimatorConfig", "RAFT_PRESETS"),
    "sea-raft-s": Method("SEA-RAFT (S)", _NETWORK, "NetworkConfig"),
    "sea-raft-m": Method("SEA-RAFT (M)", _NETWORK, "NetworkConfig"),
    "sea-raft-l": Method("SEA-RAFT (L)", _NETWORK, "NetworkConfig"),
    PTLFLOW: Method("ptlflow's models", _NETWORK, "PtlflowConfig", "PTLFLOW_PRESETS"),
}

DEFAULT_METHOD = "auto"
"""At least as good as TV-L1 on every shared pair: ``scripts/score_methods.py``."""

AUTO_NETWORK = "fullfield-s"
"""What ``auto`` refines."""

CASCADING = frozenset({"fullfield-s"})
"""Networks that cascade unless asked not to."""

ALIASES = {"sea-raft": "sea-raft-m"}

DEFAULT_PRESET = "default"
"""Every method has it."""


def canonical(method: str) -> str:
    """The name a method is known by; InputError lists the methods."""
    name = ALIASES.get(method, method)
    if name in (PREFIX, PTLFLOW) or not (name in METHODS or name.startswith(PREFIX)):
        hint = nearest(name, [*METHODS, *ALIASES])
        raise InputError(f"method: expected one of {', '.join(METHODS)}, got {method!r}{hint}")
    return name


def method_of(name: str) -> Method:
    """The entry of a canonical name."""
    return METHODS[PTLFLOW if name.startswith(PREFIX) else name]
