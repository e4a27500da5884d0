"""Folders of predictions, flow or transforms, and the configuration that made them."""

from __future__ import annotations

import hashlib
import inspect
import os
import statistics
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import CodeType
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fullfield import __version__
from fullfield._check import InputError, describe_config_differences
from fullfield._ledger.notes import (
    check_entry_kinds,
    read_json_object,
    round_trip_through_json,
    write_json_file_atomically,
)
from fullfield._ledger.settings import SettingsFile
from fullfield._ledger.versions import ChecksumCache, compute_sampled_checksum
from fullfield.datasets.base import PairSequence
from fullfield.estimators.protocol import WrappingEstimator
from fullfield.io import read_flow, write_flow
from fullfield.io.arrays import read_npy
from fullfield.io.files import (
    read_stamp_if_exists,
    remove_abandoned_temporary_files,
    require_nonempty_file_and_get_bytes,
    write_atomically,
)
from fullfield.metrics.accumulator import AVERAGING

try:
    import fcntl
except ImportError:  # Windows
    fcntl = None  # type: ignore[assignment]

_FORMAT = 2
_DIGITS = 16
_SAMPLES, _SAMPLE_BYTES = 3, 4096
CONFIG = "config.json"
RESULT = "result.json"
FAILURE = "failure.json"
OUT_OF_MEMORY = "out of memory"
AUTOMATIC = "automatic"
_ADVICE = "choose another folder or remove this one"

_Folder = TypeVar("_Folder", bound="ResultFolder")


class ResultFolder:
    """Folder that belongs to one configuration.

    A folder without predictions, as a run leaves it that failed before its first one, is taken over. ``config`` is what
    the predictions depend on, as plain values. InputError if the folder holds predictions of another configuration
    (every difference is named), or other files.
    """

    suffix: str
    """Suffix of the predictions."""

    def __init__(self, folder: str | os.PathLike[str], config: Mapping[str, Any]) -> None:
        self.folder = Path(folder)
        self.config = round_trip_through_json(config)
        self._settings = SettingsFile(
            self.folder / CONFIG,
            "the configuration of a run",
            str(self.folder),
            select_binding_settings=_drop_weights_path_if_has_checksum,
            parameters_advice="give the same --preset and options",
        )
        self.check_folder_is_new_or_run(self.folder)
        before = self._settings.write_or_check_and_return_previous(
            self.config, has_results=self._has_predictions, advice=_ADVICE, lock=self.lock
        )
        if before is not None and self._settings.list_changes(before, self.config):
            (self.folder / FAILURE).unlink(missing_ok=True)  # of the run whose folder this run has taken over
        self._checksums = ChecksumCache()
        self._remove_abandoned_temporaries()

    def _remove_abandoned_temporaries(self) -> None:
        """Remove the temporary files of processes that have ended."""
        folders = {path.parent for path in self.folder.rglob("*.part*")}
        for folder in folders:
            with suppress(OSError):
                remove_abandoned_temporary_files(folder)

    def _has_predictions(self) -> bool:
        """Return whether any prediction was stored."""
        return any(path.is_file() for path in (self.folder / "predictions").rglob("*"))

    @staticmethod
    def check_folder_is_new_or_run(folder: str | os.PathLike[str]) -> None:
        """Raise InputError for a folder with other files than a run's."""
        path = Path(folder)
        strange = path.is_dir() and any(not path.name.startswith(".") for path in path.iterdir())
        if strange and not (path / CONFIG).is_file():  # checked last: another process of the run may just have begun
            raise InputError(f"{path}: expected a new folder or one of a run, got one with other files")

    @classmethod
    def load(cls: type[_Folder], folder: str | os.PathLike[str]) -> _Folder:
        """Open the run in ``folder`` with the configuration stored there."""
        stored = Path(folder) / CONFIG
        if not stored.is_file():
            raise InputError(f"{folder}: expected the folder of a run, which has a {CONFIG}")
        return cls(folder, read_json_object(stored))

    def check_same_dataset(self, dataset: PairSequence[Any, Any]) -> None:
        """Raise InputError unless the predictions are of these files."""
        before, now = self.config.get("dataset"), build_versions_and_dataset_config(dataset)["dataset"]
        if changed := describe_config_differences(before, now, "dataset."):
            raise InputError(f"{self.folder}: holds predictions of other frames ({'; '.join(changed)})")

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from storing a prediction in this folder meanwhile, where files can be locked."""
        if fcntl is None:
            yield
            return
        with (self.folder / ".lock").open("wb") as file:
            with suppress(OSError):  # a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            yield

    def write_json(self, name: str | Path, content: Mapping[str, Any]) -> None:
        """Write a JSON file of the run, whole or not at all."""
        write_json_file_atomically(self.folder / name, content)

    def get_prediction_path(self, name: str) -> Path:
        """Return the path of a pair's prediction."""
        return self.folder / "predictions" / f"{name}{self.suffix}"

    def get_summary_path(self, name: str) -> Path:
        """Return the path of the summary of a prediction."""
        return self.folder / "predictions" / f"{name}.json"

    def read_summary_if_complete(self, name: str) -> dict[str, Any] | None:
        """Return the summary of a prediction; None where it is not complete."""
        try:
            summary = read_json_object(self.get_summary_path(name))
            return summary if summary.get("bytes") == self.get_prediction_path(name).stat().st_size else None
        except FileNotFoundError:  # opened without a check before: another process may be storing them
            return None

    def read_summary_or_raise(self, name: str) -> dict[str, Any]:
        """Return :meth:`read_summary_if_complete`; InputError where there is none."""
        summary = self.read_summary_if_complete(name)
        if summary is None:
            raise InputError(f"{self.get_prediction_path(name)}: there is no whole prediction of {name}; predict again")
        return summary

    def _store_prediction_unless_complete(
        self, name: str, summary: Mapping[str, Any], write: Callable[[Path], None], outdated_paths: Iterable[Path] = ()
    ) -> None:
        """Store a prediction and its summary; where another process was faster, its own stay: they may be in use."""
        path, summary_path = self.get_prediction_path(name), self.get_summary_path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with self.lock():
            # Another run may have taken over a folder without predictions.
            self._settings.check_unchanged(self.config, _ADVICE)
            if self.read_summary_if_complete(name) is not None:
                return
            for file in (summary_path, *outdated_paths):
                file.unlink(missing_ok=True)
            write(path)
            self.write_json(summary_path.relative_to(self.folder), {**summary, "bytes": path.stat().st_size})


class PredictionRun(ResultFolder):
    """Predictions of one method, in one configuration, on one data set.

    ::

        FOLDER/
          config.json                   what made the predictions; another configuration is refused
          predictions/NAME.flo          one a pair, written whole or not at all
          predictions/NAME.json         its summary: seconds, peak memory, backend
          scores/AVERAGING/NAME.json    what it adds to the totals
          result.json                   the totals of the last scoring
          failure.json                  instead of it: what stopped the last try for good
    """

    suffix = ".flo"

    def save_prediction_unless_complete(self, name: str, flow: Tensor, summary: Mapping[str, Any]) -> None:
        """Store a prediction [2, H, W] and its summary, and delete the scores of an incomplete one."""
        scored = [self.get_score_path(averaging, name) for averaging in AVERAGING]
        self._store_prediction_unless_complete(
            name, summary, lambda path: write_flow(path, flow), outdated_paths=scored
        )

    def read_prediction(self, name: str) -> tuple[Tensor, Tensor]:
        """Read a stored prediction [2, H, W], and where it has vectors."""
        self.read_summary_or_raise(name)
        flow, valid = read_flow(self.get_prediction_path(name))
        return flow, valid

    def read_score_if_current(self, averaging: str, name: str, truth_fingerprint: str) -> dict[str, Any] | None:
        """Return a pair's contribution to the totals if this prediction was scored against the same truth."""
        path = self.get_score_path(averaging, name)
        try:
            stored = read_json_object(path)
        except FileNotFoundError:
            return None
        if stored.get("truth") != truth_fingerprint or not self._is_score_current(name, stored):
            return None
        check_entry_kinds(path, stored, state="object")
        state: dict[str, Any] = stored["state"]
        return state

    def store_score(self, averaging: str, name: str, truth_fingerprint: str, state: Mapping[str, Any]) -> None:
        """Store a pair's contribution to the totals."""
        prediction = self.get_prediction_path(name)
        content = {
            "truth": truth_fingerprint,
            "stamp": read_stamp_if_exists(prediction),
            "checksum": compute_sampled_checksum(prediction),
            "state": state,
        }
        self.write_json(self.get_score_path(averaging, name).relative_to(self.folder), content)

    def _is_score_current(self, name: str, stored: Mapping[str, Any]) -> bool:
        """Return whether a stored score is of the prediction that exists now."""
        prediction = self.get_prediction_path(name)
        if stored.get("stamp") == list(read_stamp_if_exists(prediction) or ()):
            return True
        return stored.get("checksum") == self._checksums.get_or_compute_checksum_if_readable(str(prediction))

    def get_score_path(self, averaging: str, name: str) -> Path:
        """Return the path of a pair's contribution to the totals."""
        return self.folder / "scores" / averaging / f"{name}.json"


class ScanRun(ResultFolder):
    """Transforms of one registration method, in one configuration, on one list of pairs.

    ::

        FOLDER/
          config.json              what made the predictions; another configuration is refused
          predictions/NAME.json    a pair's transform, or why there is none; its seconds
          predictions/NAME.npy     its matched points [M, 2, 3], of source and target
          truth/NAME.json          its true pose as it judges, and the moments of the overlap
          result.json              the scores of the last scoring
    """

    suffix = ".npy"

    def read_summary_if_complete(self, name: str) -> dict[str, Any] | None:
        """Return the result of a pair; None where it is not complete."""
        summary, summary_path = super().read_summary_if_complete(name), self.get_summary_path(name)
        if summary is not None:
            check_entry_kinds(summary_path, summary, success="true or false", reason="text or null", seconds="number")
            check_entry_kinds(
                summary_path, summary, transform="4 rows of 4" if summary["success"] else "4 rows of 4 or null"
            )
        return summary

    def save_registration_unless_complete(
        self, name: str, summary: Mapping[str, Any], matches: NDArray[np.float64]
    ) -> None:
        """Store the result of a pair and its matched points [M, 2, 3]."""

        def write(path: Path) -> None:
            with write_atomically(path) as temporary:
                np.save(temporary, matches)

        self._store_prediction_unless_complete(name, summary, write)

    def read_matches(self, name: str) -> NDArray[np.float64]:
        """Read a pair's matched points [M, 2, 3]."""
        path = self.get_prediction_path(name)
        points = read_npy(path, allow_empty=True)
        if points.ndim != 3 or points.shape[1:] != (2, 3):
            raise InputError(f"{path}: expected matched points [M, 2, 3], got {list(points.shape)}")
        return points.astype(np.float64, copy=False)

    def read_truth_if_current(self, name: str, inputs_checksum: str) -> dict[str, Any] | None:
        """Return the stored truth of a pair if it was computed from the same inputs."""
        path = self._get_truth_path(name)
        stored = read_json_object(path) if path.is_file() else {}
        if stored.get("key") != inputs_checksum:
            return None
        check_entry_kinds(path, stored, pose="4 rows of 4", overlap="number or null")
        check_entry_kinds(path, stored, moment="4 rows of 4, each a number or null")
        return stored

    def store_truth(self, name: str, inputs_checksum: str, content: Mapping[str, Any]) -> None:
        """Store a pair's truth."""
        self.write_json(self._get_truth_path(name).relative_to(self.folder), {"key": inputs_checksum, **content})

    def _get_truth_path(self, name: str) -> Path:
        return self.folder / "truth" / f"{name}.json"


def _drop_weights_path_if_has_checksum(config: Mapping[str, Any]) -> dict[str, Any]:
    """Leave out the path of weights whose checksum is there, because they may lie elsewhere."""
    parameters = config.get("parameters")
    if not isinstance(parameters, dict) or not parameters.get("weights_sha256"):
        return dict(config)
    return {**config, "parameters": {**parameters, "weights": None}}


def build_versions_and_dataset_config(dataset: PairSequence[Any, Any]) -> dict[str, Any]:
    """Return the part of a configuration that does not depend on the estimator, as plain values."""
    import torch

    return {
        "format": _FORMAT,
        "fullfield": __version__,
        "torch": torch.__version__,
        "dataset": {
            "name": dataset.name,
            "pairs": len(dataset.records),
            "frames": _fingerprint_sampled_inputs(dataset),
        },
    }


def fingerprint_method_code_if_no_parameters(method: Any) -> dict[str, str]:
    """Return the entry ``source`` of a run's configuration; empty for a method that has parameters.

    The beginning of a checksum of the file in which the method's class is written. A class that was typed into an
    interpreter or a notebook has no file: the checksum is that of its functions.
    """
    while isinstance(method, WrappingEstimator):
        method = method.estimator
    if method.parameters:
        return {}
    kind = type(method)
    try:
        content = Path(inspect.getfile(kind)).read_bytes()
    except (TypeError, OSError):
        content = "\n".join(
            part for base in kind.__mro__ if base is not object for part in _iterate_class_bytecode_descriptions(base)
        ).encode()
    return {"source": hashlib.sha256(content).hexdigest()[:_DIGITS]}


def _iterate_class_bytecode_descriptions(inspected_class: type) -> Iterator[str]:
    for name, value in vars(inspected_class).items():
        code = getattr(getattr(value, "fget", getattr(value, "__func__", value)), "__code__", None)
        if isinstance(code, CodeType):
            yield f"{name} {_describe_bytecode(code)}"


def _describe_bytecode(code: CodeType) -> str:
    """Return the bytes, names and constants of a function's code, without line numbers."""
    constants = [_describe_constant(one) for one in code.co_consts]
    return f"{code.co_code.hex()} {code.co_names} {constants}"


def _describe_constant(constant: object) -> str:
    if isinstance(constant, CodeType):
        return _describe_bytecode(constant)
    # Sets have no order of their own.
    return repr(sorted(map(repr, constant)) if isinstance(constant, frozenset) else constant)


def fingerprint_files_by_mtime(paths: Iterable[Path]) -> str:
    """Return a checksum of names, sizes and modification times, which change when a file is written again."""
    digest = hashlib.sha256()
    for path in paths:
        state = path.stat()
        digest.update(f"{path.name}\0{state.st_size}\0{state.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:_DIGITS]


def _fingerprint_sampled_inputs(dataset: PairSequence[Any, Any]) -> str:
    """Return a checksum of the inputs that does not depend on their folder.

    It covers names, sizes and samples of the content, because many formats have only one size.
    """
    digest = hashlib.sha256()
    seen: dict[Path, bytes] = {}
    for record in dataset.records:
        digest.update(f"{record.name}\n".encode())
        for path in record.input_files:
            if path not in seen:
                seen[path] = _hash_file_samples(path)
            digest.update(seen[path])
    return digest.hexdigest()[:_DIGITS]


def _hash_file_samples(path: Path) -> bytes:
    size = require_nonempty_file_and_get_bytes(path)
    digest = hashlib.sha256(f"{path.name}\0{size}\n".encode())
    with path.open("rb") as file:
        for sample in range(_SAMPLES):
            file.seek(max(0, size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1))
            digest.update(file.read(_SAMPLE_BYTES))
    return digest.digest()


def summarize_runtime(seconds: Sequence[float]) -> dict[str, float]:
    """Return mean, standard deviation, median and extremes of the seconds per pair."""
    return {
        "mean_s": statistics.fmean(seconds),
        "std_s": statistics.pstdev(seconds),
        "median_s": statistics.median(seconds),
        "min_s": min(seconds),
        "max_s": max(seconds),
    }
