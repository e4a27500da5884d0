"""ptlflow's models on their own lookup on demand, which needs RAFT's CUDA extension."""

from __future__ import annotations

import hashlib
import os
import sys
from pathlib import Path
from typing import Any

from fullfield._check import InputError
from fullfield.integrations.alt_cuda_corr import alt_cuda_corr_extension, alt_cuda_corr_sources

_NAME = "alt_cuda_corr"
_DIGITS = 12


class Extension:
    """The compiled extension under the name that models know. Counts its lookups: some models fall back silently.

    Args:
        module: what was compiled, with ``forward`` and ``backward``.
        digest: of its sources.
    """

    def __init__(self, module: Any, digest: str) -> None:
        self._module, self.digest, self.calls = module, digest, 0

    @classmethod
    def of(cls, folder: str | os.PathLike[str]) -> Extension:
        """Compiled from ``folder``, about a minute. InputError where that fails, or there is no GPU."""
        sources = "".join(alt_cuda_corr_sources(folder).values())
        digest = hashlib.sha256(sources.encode()).hexdigest()[:_DIGITS]
        return cls(alt_cuda_corr_extension(folder, lambda _: None), digest)

    def forward(self, *arguments: Any) -> Any:
        """A lookup."""
        self.calls += 1
        return self._module.forward(*arguments)

    def backward(self, *arguments: Any) -> Any:
        """Its gradients."""
        return self._module.backward(*arguments)

    def give(self, model: Any, method: str) -> None:
        """Switch ``model`` to its lookup on demand, and that to this extension.

        The modules in the folder of the model's own get it; they would import it while they are imported.
        InputError for a model that has no such lookup.
        """
        if hasattr(model, "alternate_corr"):
            model.alternate_corr = True
        elif hasattr(model, "corr_mode"):
            model.corr_mode = "local"
        else:
            raise InputError(f"{_NAME}: {method} has no lookup on demand; leave it out")
        home = Path(str(sys.modules[type(model).__module__].__file__)).parent
        for module in list(sys.modules.values()):
            file = Path(getattr(module, "__file__", None) or ".")
            if file.suffix == ".py" and file.is_relative_to(home) and _NAME in file.read_text("utf-8"):
                module.__dict__[_NAME] = self
