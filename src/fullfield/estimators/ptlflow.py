"""ptlflow's models as estimators, on our correlation lookups where they have them."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.estimators.frames import check_pair
from fullfield.estimators.ptlflow_config import PREFIX, RANDOM, PtlflowConfig
from fullfield.models.downloads import DownloadError, digest, download
from fullfield.models.state import fit, read_state
from fullfield.models.weights import weights_folder

if TYPE_CHECKING:
    from fullfield.integrations import Handle
    from fullfield.integrations.alt_cuda_corr import Extension

ORIGINAL = "ptlflow"
"""As backend: the model's own correlation."""
ON_DEMAND = "alt_cuda_corr"
"""As backend: the model's own lookup on demand, with RAFT's CUDA extension."""

_PREFERRED = ("sintel", "things")
_SEED = 0
_DIGITS = 12
# Pixels that every model takes; four levels of 1/8 still have two cells.
_SAFE_SIDE = 128
# Characters of another package's message.
_TOLD = 160
# The checksum's first digits are part of a checkpoint's name.
_DIGEST = re.compile(r"-([0-9a-f]{8,})\.\w+$")
# Attributes that say how often a flow is updated, by model.
_UPDATES = ("iters", "decoder_depth", "num_reg_refine")


class PtlflowEstimator:
    """A model of ptlflow on pairs of frames of any size. It is built and loaded at the first call, and kept.

    Checkpoints that ptlflow publishes are fetched then, into our cache. Calls from several threads wait for each other.
    An estimator can be pickled; what reads it loads for itself.

    Args:
        name: as ptlflow calls the model, with or without ``"ptlflow:"``.
        config: weights, updates and whether to patch.
        backend: of the correlation lookup in a patched model, as for :func:`fullfield.patch`.

    Raises:
        InputError: if ptlflow is not installed or cannot be imported, or has no such model for two frames.
    """

    def __init__(self, name: str, config: PtlflowConfig | None = None, *, backend: str | None = None) -> None:
        from fullfield.integrations.ptlflow import MORE_FRAMES

        self._name = name.removeprefix(PREFIX)
        self.method = PREFIX + self._name
        self.config = PtlflowConfig() if config is None else config
        _check.require(isinstance(self.config, PtlflowConfig), "config", "a PtlflowConfig", self.config)
        names = import_ptlflow().get_model_names()
        if self._name not in names:
            hint = _check.nearest(self.method, [PREFIX + known for known in names])
            raise InputError(f"method: expected {PREFIX} and one of {', '.join(names)}, got {name!r}{hint}")
        if self._name in MORE_FRAMES:
            raise InputError(f"method: {self._name} needs {MORE_FRAMES[self._name]} frames, an estimator is given two")
        own = ON_DEMAND if self.config.alt_cuda_corr is not None else None if self.config.patched else "patched=False"
        fits = backend is None or own is None
        _check.require(fits, "backend", f"None beside {own}, where the lookup is the model's own", repr(backend))
        self._asked = backend
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.RLock()
        self._model: torch.nn.Module | None = None
        self._handle: Handle | None = None
        self._extension: Extension | None = None
        self._origin: dict[str, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {"_name": self._name, "method": self.method, "config": self.config, "_asked": self._asked}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The configuration. Once the model is loaded, what was loaded, with the first 12 digits of the file's
        checksum, the number of updates, whether it is patched, the first 12 digits of the checksum of the extension's
        sources, and ptlflow's version."""
        return {**self.config.as_dict(), **self._origin}

    @property
    def asked_backend(self) -> str | None:
        """The backend asked for; None leaves it open."""
        return self._asked

    @property
    def backend(self) -> str:
        """Of the correlation lookups: ours by name, ``"ptlflow"`` for the model's own, or ``"alt_cuda_corr"`` for its
        own on demand."""
        if self._model is None:
            return self._asked or "automatic"
        if self._handle is None:
            return ORIGINAL if self._extension is None else ON_DEMAND
        return self._asked or next(self._model.parameters()).device.type

    def prepare(
        self,
        device: str | torch.device = "cpu",
        size: tuple[int, int] | None = None,
        fetching: Callable[[int, int | None], None] | None = None,
    ) -> None:
        """Build, load and patch the model now instead of at the first call.

        Args:
            device: where the frames will be.
            size: not needed; models serve every size.
            fetching: called with the bytes of the weights that have arrived and their number, while they are fetched.
        """
        del size
        with self._lock:
            self._ready(torch.empty(0, device=_check.device(device)).device, fetching)

    def __call__(
        self,
        frame1: Tensor,
        frame2: Tensor,
        *,
        initial_flow: Tensor | None = None,
        progress: Callable[[float, str], None] | None = None,
    ) -> Tensor:
        """Frames [B, C, H, W] to flow [B, 2, H, W]; see :class:`Estimator`. ``initial_flow`` must be None."""
        check_pair(frame1, frame2)
        if initial_flow is not None:
            raise InputError(f"initial_flow: expected None, {self.method} takes no flow to start from")
        with self._lock, torch.no_grad():
            model = self._ready(frame1.device)
            if progress is not None:
                progress(0.0, self._name)
            frames = torch.stack((frame1, frame2), 1).float().expand(-1, -1, 3, -1, -1)
            with _quiet():
                flow = self._flow(model, frames.flip(2))  # it takes BGR
            if self._extension is not None and not self._extension.calls:
                raise InputError(f"{ON_DEMAND}: {self.method} does not look up with the extension; leave it out")
            if progress is not None:
                progress(1.0, self._name)
        return flow.float().contiguous()

    def _flow(self, model: torch.nn.Module, images: Tensor) -> Tensor:
        """Every model pads and crops for itself; some fail on frames whose coarsest level has no cell."""
        height, width = images.shape[-2:]
        try:
            flow: Tensor = model({"images": images})["flows"][:, 0]
        except (RuntimeError, ValueError, AssertionError) as error:
            if isinstance(error, torch.OutOfMemoryError) or min(height, width) >= _SAFE_SIDE:
                raise
            why = " ".join(str(error).split()) or type(error).__name__
            raise InputError(
                f"frame1: {self.method} fails on frames of {width}x{height} ({why[:_TOLD]}); "
                f"expected sides of {_SAFE_SIDE} at least"
            ) from error
        if flow.shape[-2:] != (height, width):
            raise RuntimeError(f"{self.method} returned a flow {list(flow.shape)} for frames {list(images.shape)}")
        return flow

    def _ready(
        self, device: torch.device, fetching: Callable[[int, int | None], None] | None = None
    ) -> torch.nn.Module:
        if self._model is None:
            self._load(fetching)
        model = self._model
        if model is None:
            raise RuntimeError("the model was not built")
        if next(model.parameters()).device != device:
            model.to(device)
        if self._origin["patched"] and self._handle is None:
            from fullfield.integrations import patch

            self._handle = patch(model, backend=self._asked)
        return model

    def _load(self, fetching: Callable[[int, int | None], None] | None) -> None:
        ptlflow = import_ptlflow()
        if self.config.alt_cuda_corr is not None:
            from fullfield.integrations.alt_cuda_corr import alt_cuda_corr_sources

            alt_cuda_corr_sources(self.config.alt_cuda_corr)  # before anything is fetched
        name, path = self._weights(ptlflow, fetching)
        try:
            with torch.random.fork_rng(devices=[]), _quiet():
                torch.default_generator.manual_seed(_SEED)  # torch.manual_seed would set the GPUs' too
                model = ptlflow.get_model(self._name)
        except (ImportError, ValueError) as error:  # ptlflow's parser turns what a constructor raises into ValueErrors
            raise InputError(f"method: {self.method} cannot be built here: {' '.join(str(error).split())}") from None
        except OSError as error:
            raise OSError(f"{self.method}: its parts cannot be fetched: {error}") from None
        if path is not None:
            fit(model, read_state(path)[0], str(path), f"ptlflow's {self._name}")
        if self.config.alt_cuda_corr is not None:
            from fullfield.integrations.alt_cuda_corr import Extension

            self._extension = Extension.of(self.config.alt_cuda_corr)
            self._extension.give(model, self.method)
        self._origin = {
            "weights": name,
            "weights_sha256": None if path is None else digest(path)[:_DIGITS],
            "updates": self._updates(model),
            "patched": self._is_to_be_patched(model),
            ON_DEMAND: None if self._extension is None else self._extension.digest,
            "ptlflow": ptlflow.__version__,
        }
        self._model = model.eval()

    def _weights(self, ptlflow: Any, fetching: Callable[[int, int | None], None] | None) -> tuple[str, Path | None]:
        """The name and the file."""
        wanted = self.config.weights
        if wanted == RANDOM:
            return RANDOM, None
        urls: Mapping[str, str] = getattr(ptlflow.get_model_reference(self._name), "pretrained_checkpoints", {})
        known = f"ptlflow publishes {', '.join(urls) or 'none'} for {self._name}; 'random' stands for random numbers"
        if wanted is None:
            if not urls:
                raise InputError(f"weights: expected a file: {known}")
            wanted = next((name for name in _PREFERRED if name in urls), next(iter(urls)))
        if wanted not in urls:
            path = Path(wanted)
            if not path.is_file():
                raise InputError(f"weights: {wanted}: no such file; {known}")
            return wanted, path
        return wanted, _fetched(urls[wanted], fetching)

    def _updates(self, model: torch.nn.Module) -> int | None:
        """The number of flow updates, after setting it if one was asked for."""
        name = next((n for n in _UPDATES if isinstance(getattr(model, n, None), int)), None)
        if self.config.updates is not None:
            if name is None:
                raise InputError(f"updates: expected None, the updates of {self.method} are not one number")
            setattr(model, name, self.config.updates)
        return None if name is None else int(getattr(model, name))

    def _is_to_be_patched(self, model: torch.nn.Module) -> bool:
        from fullfield.integrations.ptlflow import OTHER, support_of

        if self.config.alt_cuda_corr is not None or not self.config.patched:
            return False
        support = support_of(model)
        if support is None or support.state != OTHER:
            return True
        _check.require(self._asked is None, "backend", f"None, as {self.method} {_NO_LOOKUP}", repr(self._asked))
        return False


_NO_LOOKUP = "has no correlation that is known"


def _fetched(url: str, fetching: Callable[[int, int | None], None] | None) -> Path:
    file = url.rpartition("/")[2]
    target = weights_folder() / file
    if not target.is_file():
        known = _DIGEST.search(file)
        try:
            download(url, target, sha256=known.group(1) if known else None, progress=fetching)
        except DownloadError as error:
            raise DownloadError(f"{error}; fetch {url} and put it at {target}, or pass a file as weights") from None
    return target


def import_ptlflow() -> Any:
    """The package. It prints and warns while it is imported."""
    try:
        with _quiet():
            import ptlflow

            return ptlflow
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision that does not fit this PyTorch
        raise InputError(
            f"method: {PREFIX}NAME needs the package ptlflow, which cannot be imported: {' '.join(str(error).split())}"
            " (it needs torchvision of this PyTorch's release)"
        ) from None


def _quiet() -> AbstractContextManager[None]:
    from fullfield.integrations.forms import quiet

    return quiet()
