"""Registry of the estimation methods. Light: imports neither torch nor numpy.

To add a method, write its estimator and its configuration and add one :class:`Method` to :data:`METHODS`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any

from fullfield._check import InputError, format_did_you_mean_hint, require
from fullfield.estimators.network_config import PREFIX

if TYPE_CHECKING:
    from fullfield.estimators.protocol import Estimator

PTLFLOW = f"{PREFIX}NAME"
"""Stands for every model of ptlflow."""

_CUSTOM_CLASS = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")
"""Name of a method that is a class of the user's."""


@dataclass(frozen=True)
class Method:
    """Entry of an estimation method: its estimator, its configuration and its capabilities.

    A configuration is a frozen dataclass with a default for every field and
    ``metadata={"help": ..., "choices": ..., "metavar": ...}``; ``presets`` is a mapping in the same module. Importing
    that module must stay cheap.

    Attributes:
        title: name in headings.
        module: module of the configuration and its presets.
        config: name of the configuration's class.
        presets_name: name of the mapping of presets.
        estimator: ``"module:class"`` of the estimator, built with the configuration and ``backend``.
        is_family: whether the class also receives the method's name, as its first argument.
        network: entry of :data:`fullfield.models.weights.NETWORKS` whose published weights it takes.
        cascades: whether large frames are cascaded, and small ones enlarged, unless the configuration says otherwise.
        luminance_only: whether colour adds nothing, so that live video may be read in grey.
    """

    title: str
    module: str
    config: str
    presets_name: str = "PRESETS"
    estimator: str = ""
    is_family: bool = False
    network: str | None = None
    cascades: bool = False
    luminance_only: bool = False

    def import_config_class(self) -> Any:
        """Return the configuration's class."""
        return getattr(import_module(self.module), self.config)

    def load_presets(self) -> Mapping[str, Any]:
        """Return the configurations by name of preset."""
        presets: Mapping[str, Any] = getattr(import_module(self.module), self.presets_name)
        return presets

    def build_estimator(self, name: str, config: Any, backend: str | None) -> Estimator:
        """Return a new estimator of the method ``name``, which for ptlflow's models is longer than the entry's."""
        module, _, kind = self.estimator.partition(":")
        make = getattr(import_module(module), kind)
        estimator: Estimator = make(*((name, config) if self.is_family else (config,)), backend=backend)
        return estimator


@dataclass(frozen=True)
class CustomMethod(Method):
    """Entry of a class of the user's that follows ``Estimator`` and is called without arguments."""

    def build_estimator(self, name: str, config: Any, backend: str | None) -> Estimator:  # noqa: ARG002 - without parameters
        """Return a new instance of the class; InputError if there is no such class."""
        from fullfield.estimators.protocol import check_estimator

        require(backend is None, "backend", f"None with method {name}", repr(backend))
        module, _, attribute = name.partition(":")
        try:
            kind = getattr(import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            reason = " ".join(str(error).split())
            hint = "its folder belongs into PYTHONPATH"
            raise InputError(f"method: {name}: expected a class that can be imported, got: {reason}; {hint}") from None
        require(isinstance(kind, type), "method", f"a class called {name}", type(kind).__name__)
        try:
            estimator: Estimator = kind()
        except TypeError as error:
            raise InputError(f"method: {name}: expected a class without arguments, got: {error}") from None
        check_estimator(estimator, f"method: {name}", "a class that follows fullfield.estimators.Estimator")
        return estimator


_CONFIGS = "fullfield.estimators.network_config"


def _create_network_method(
    title: str, name: str, config: str = "NetworkSettings", presets: str = "PRESETS", **method_fields: Any
) -> Method:
    """Return the entry of a network whose weights are published under ``name``."""
    estimator = "fullfield.estimators.network:NetworkEstimator"
    return Method(title, _CONFIGS, config, presets, estimator, is_family=True, network=name, **method_fields)


METHODS = {
    "tvl1": Method(
        "TV-L1",
        "fullfield.ops.tvl1.config",
        "TVL1Config",
        estimator="fullfield.estimators.tvl1:TVL1Estimator",
        luminance_only=True,
    ),
    "auto": Method(
        "auto",
        _CONFIGS,
        "NetworkSettings",
        # The network that it refines.
        network="fullfield-m",
        estimator="fullfield.estimators.network:AutoEstimator",
        cascades=True,
    ),
    "fullfield-s": _create_network_method("fullfield-s", "fullfield-s", cascades=True),
    "fullfield-m": _create_network_method("fullfield-m", "fullfield-m", cascades=True),
    "raft": _create_network_method("RAFT", "raft", "RAFTSettings", "RAFT_PRESETS"),
    "raft-small": _create_network_method("RAFT-small", "raft-small", "RAFTSettings", "RAFT_PRESETS"),
    "sea-raft-s": _create_network_method("SEA-RAFT (S)", "sea-raft-s"),
    "sea-raft-m": _create_network_method("SEA-RAFT (M)", "sea-raft-m"),
    "sea-raft-l": _create_network_method("SEA-RAFT (L)", "sea-raft-l"),
    PTLFLOW: Method(
        "ptlflow's models",
        _CONFIGS,
        "PtlflowSettings",
        "PTLFLOW_PRESETS",
        "fullfield.estimators.ptlflow:PtlflowEstimator",
        is_family=True,
    ),
}

DEFAULT_METHOD = "auto"
"""At least as accurate as TV-L1 on every shared pair: ``benchmarks/experiments/score_methods.py``."""

ALIASES = {"sea-raft": "sea-raft-m"}

DEFAULT_PRESET = "default"
"""Every method has it."""


def resolve_method_name(method: str) -> str:
    """Return the canonical name of a method; InputError lists the methods."""
    name = ALIASES.get(method, method)
    if _is_custom_class_name(name):
        return name
    if name in (PREFIX, PTLFLOW) or not (name in METHODS or name.startswith(PREFIX)):
        lower = name.lower()
        hint = f"; did you mean {lower}?" if lower in METHODS else format_did_you_mean_hint(name, [*METHODS, *ALIASES])
        raise InputError(f"method: expected one of {', '.join(METHODS)}, got {method!r}{hint}")
    return name


def get_method(name: str) -> Method:
    """Return the entry of a canonical name."""
    if _is_custom_class_name(name):
        return CustomMethod(name, _CONFIGS, "CustomSettings", "CUSTOM_PRESETS")
    return METHODS[PTLFLOW if name.startswith(PREFIX) else name]


def _is_custom_class_name(name: str) -> bool:
    return not name.startswith(PREFIX) and _CUSTOM_CLASS.fullmatch(name) is not None
