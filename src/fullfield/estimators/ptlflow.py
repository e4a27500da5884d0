"""Estimators of ptlflow's models, on our correlation lookups if they have such lookups."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError, SetupError
from fullfield.estimators._devices import check_fork_safety_and_record_use
from fullfield.estimators._frames import check_frame_pair
from fullfield.estimators.network_config import PREFIX, RANDOM, PtlflowSettings
from fullfield.estimators.protocol import LoadingEstimator, Progress
from fullfield.models.downloads import DownloadError, DownloadProgress, compute_sha256, download_if_missing
from fullfield.models.state import load_state_into, read_state_dict_and_name
from fullfield.models.weights import get_or_create_weights_folder

if TYPE_CHECKING:
    from fullfield.integrations import Handle

ORIGINAL = "ptlflow"
"""Backend: the model's own correlation."""

_PREFERRED = ("sintel", "things")
_SEED = 0
_DIGITS = 12
# Sides that every model accepts; four levels of 1/8 still have two cells.
_SAFE_SIDE = 128
# Characters of another package's message.
_MAX_MESSAGE_LENGTH = 160
# A checkpoint's name contains the first digits of its checksum.
_DIGEST = re.compile(r"-([0-9a-f]{8,})\.\w+$")
# Attributes that hold the number of flow updates, by model.
_UPDATES = ("iters", "decoder_depth", "num_reg_refine")


class PtlflowEstimator(LoadingEstimator):
    """Estimator of a ptlflow model for frames of any size. The model is built and loaded at the first call, and kept.

    Checkpoints that ptlflow publishes are downloaded then, into our cache. Calls from several threads wait for each
    other. An estimator can be pickled; the copy loads its own model.

    Args:
        name: ptlflow's name of the model, with or without ``"ptlflow:"``.
        config: weights, updates and whether to patch.
        backend: backend of the correlation lookup in a patched model, as for :func:`fullfield.patch`.

    Raises:
        InputError: if ptlflow has no such model for two frames.
        SetupError: if ptlflow is not installed or cannot be imported.
    """

    config: PtlflowSettings

    @property
    def accepts_unchecked_frames(self) -> bool:
        """False, because a model of others may do anything with bad values."""
        return False

    def __init__(self, name: str, config: PtlflowSettings | None = None, *, backend: str | None = None) -> None:
        from fullfield.integrations.ptlflow import FRAME_COUNTS

        own_name = name.removeprefix(PREFIX)
        self.method = PREFIX + own_name
        self.config = PtlflowSettings() if config is None else config
        _check.require(isinstance(self.config, PtlflowSettings), "config", "a PtlflowSettings", self.config)
        names = import_ptlflow().get_model_names()
        if own_name not in names:
            hint = _check.format_did_you_mean_hint(self.method, [PREFIX + model_name for model_name in names])
            raise InputError(f"method: expected {PREFIX} and one of {', '.join(names)}, got {name!r}{hint}")
        if own_name in FRAME_COUNTS:
            raise InputError(f"method: {own_name} needs {FRAME_COUNTS[own_name]} frames, an estimator is given two")
        is_valid = backend is None or self.config.patched
        _check.require(
            is_valid, "backend", "None with patched=False, where the lookup is the model's own", repr(backend)
        )
        self._requested = backend
        self._reset_to_unloaded()

    def _reset_to_unloaded(self) -> None:
        super()._reset_to_unloaded()
        self._name = self.method.removeprefix(PREFIX)
        self._model: torch.nn.Module | None = None
        self._handle: Handle | None = None

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Configuration, and once the model is loaded what was loaded.

        That is the weights with the first 12 digits of their checksum, the number of updates, whether the model is
        patched, and ptlflow's version.
        """
        return {**self.config.as_dict(), **self._origin}

    @property
    def backend(self) -> str:
        """Backend of the correlation lookups: one of ours, or ``"ptlflow"`` for the model's own."""
        if self._model is None:
            return self._requested or "automatic"
        if self._handle is None:
            return ORIGINAL
        from fullfield.integrations.forms import get_backend_or_cuda_on_nvidia

        device = next(self._model.parameters()).device
        return get_backend_or_cuda_on_nvidia(device, self._requested) or (
            "cpu" if device.type == "cpu" else "reference"
        )

    def prepare(
        self,
        device: str | torch.device = "cpu",
        size: tuple[int, int] | None = None,
        download_progress: DownloadProgress | None = None,
    ) -> None:
        """Load and patch the model now instead of at the first call.

        Args:
            device: device of the frames.
            size: not needed; models serve every size.
            download_progress: receives the downloaded and the total bytes of the weights while they are downloaded.
        """
        del size
        with self._lock:
            self._get_or_load_and_patch_model(
                torch.empty(0, device=_check.resolve_available_device(device)).device, download_progress
            )

    def __call__(
        self, frame1: Tensor, frame2: Tensor, *, initial_flow: Tensor | None = None, progress: Progress | None = None
    ) -> Tensor:
        """Estimate the flow [B, 2, H, W] of frames [B, C, H, W]; ``initial_flow`` must be None."""
        check_frame_pair(frame1, frame2)
        check_fork_safety_and_record_use(frame1.device)
        if initial_flow is not None:
            raise InputError(f"initial_flow: expected None, {self.method} takes no flow to start from")
        with self._lock, torch.no_grad():
            model = self._get_or_load_and_patch_model(frame1.device)
            if progress is not None:
                progress(0.0, self._name)
            frames = torch.stack((frame1, frame2), 1).float().expand(-1, -1, 3, -1, -1)
            with _create_ptlflow_silencing_context():
                flow = self._run_model_and_check_flow(model, frames.flip(2))  # ptlflow takes BGR
            if progress is not None:
                progress(1.0, self._name)
        return flow.float().contiguous()

    def _run_model_and_check_flow(self, model: torch.nn.Module, images: Tensor) -> Tensor:
        """Run the model, which pads and crops itself; some fail on frames whose coarsest level has no cell."""
        height, width = images.shape[-2:]
        try:
            flow: Tensor = model({"images": images})["flows"][:, 0]
        except (RuntimeError, ValueError, AssertionError) as error:
            if isinstance(error, torch.OutOfMemoryError) or min(height, width) >= _SAFE_SIDE:
                raise
            reason = " ".join(str(error).split()) or type(error).__name__
            raise InputError(
                f"frame1: {self.method} fails on frames of {width}x{height} ({reason[:_MAX_MESSAGE_LENGTH]}); "
                f"expected sides of {_SAFE_SIDE} at least"
            ) from error
        if flow.shape[-2:] != (height, width):
            raise RuntimeError(f"{self.method} returned a flow {list(flow.shape)} for frames {list(images.shape)}")
        return flow

    def _get_or_load_and_patch_model(
        self, device: torch.device, download_progress: DownloadProgress | None = None
    ) -> torch.nn.Module:
        if self._model is None:
            self._load_model(download_progress)
        model = self._model
        if model is None:
            raise RuntimeError("the model was not built")
        if next(model.parameters()).device != device:
            model.to(device)
        if self._origin["patched"] and self._handle is None:
            from fullfield.integrations.patching import patch

            self._handle = patch(model, backend=self._requested)
        return model

    def _load_model(self, download_progress: DownloadProgress | None) -> None:
        ptlflow = import_ptlflow()
        name, path = self._get_weights_name_and_downloaded_path(ptlflow, download_progress)
        try:
            with torch.random.fork_rng(devices=[]), _create_ptlflow_silencing_context():
                torch.default_generator.manual_seed(_SEED)  # torch.manual_seed would set the GPUs' too
                model = ptlflow.get_model(self._name)
        except (ImportError, ValueError) as error:  # ptlflow's parser turns what a constructor raises into ValueErrors
            raise SetupError(f"method: {self.method} cannot be built here: {' '.join(str(error).split())}") from None
        except OSError as error:
            raise OSError(f"{self.method}: its parts cannot be fetched: {error}") from None
        if path is not None:
            load_state_into(model, read_state_dict_and_name(path)[0], str(path), f"ptlflow's {self._name}")
        self._origin = {
            "weights": name,
            "weights_sha256": None if path is None else compute_sha256(path)[:_DIGITS],
            "updates": self._set_requested_updates_and_get_count(model),
            "patched": self._should_patch(model),
            "ptlflow": ptlflow.__version__,
        }
        self._model = model.eval()

    def _get_weights_name_and_downloaded_path(
        self, ptlflow: Any, download_progress: DownloadProgress | None
    ) -> tuple[str, Path | None]:
        """Return the name of the weights and their file."""
        weights = self.config.weights
        if weights == RANDOM:
            return RANDOM, None
        urls: Mapping[str, str] = getattr(ptlflow.get_model_reference(self._name), "pretrained_checkpoints", {})
        available = f"ptlflow publishes {', '.join(urls) or 'none'} for {self._name}; 'random' means random weights"
        if weights is None:
            if not urls:
                raise InputError(f"weights: expected a file: {available}")
            weights = next((name for name in _PREFERRED if name in urls), next(iter(urls)))
        if weights not in urls:
            path = Path(weights)
            if not path.is_file():
                raise InputError(f"weights: {weights}: no such file; {available}")
            return weights, path
        return weights, _download_unless_cached(urls[weights], download_progress)

    def _set_requested_updates_and_get_count(self, model: torch.nn.Module) -> int | None:
        """Set the number of flow updates if one was requested, and return it."""
        name = next((n for n in _UPDATES if isinstance(getattr(model, n, None), int)), None)
        if self.config.updates is not None:
            if name is None:
                raise InputError(f"updates: expected None, the updates of {self.method} are not one number")
            setattr(model, name, self.config.updates)
        return None if name is None else int(getattr(model, name))

    def _should_patch(self, model: torch.nn.Module) -> bool:
        from fullfield.integrations.ptlflow import OTHER, find_model_support_or_none

        if not self.config.patched:
            return False
        support = find_model_support_or_none(model)
        if support is None or support.state != OTHER:
            return True
        reason = f"None, as {self.method} has no correlation that is known"
        _check.require(self._requested is None, "backend", reason, repr(self._requested))
        return False


def _download_unless_cached(url: str, download_progress: DownloadProgress | None) -> Path:
    file = url.rpartition("/")[2]
    target = get_or_create_weights_folder() / file
    if not target.is_file():
        match = _DIGEST.search(file)
        try:
            download_if_missing(url, target, sha256=match.group(1) if match else None, progress=download_progress)
        except DownloadError as error:
            raise DownloadError(f"{error}; fetch {url} and put it at {target}, or pass a file as weights") from None
    return target


def import_ptlflow() -> Any:
    """Import ptlflow without its messages; SetupError if it is missing."""
    try:
        with _create_ptlflow_silencing_context():
            import ptlflow

            return ptlflow
    except (ImportError, RuntimeError) as error:  # RuntimeError: a torchvision that does not fit this PyTorch
        raise SetupError(
            f"method: {PREFIX}NAME needs the package ptlflow, which cannot be imported: {' '.join(str(error).split())}"
            " (it needs torchvision of this PyTorch's release)"
        ) from None


def _create_ptlflow_silencing_context() -> AbstractContextManager[None]:
    from fullfield.integrations.forms import silence_output_and_warnings

    return silence_output_and_warnings()
