"""Which stored run belongs to which row and column of the paper: all of that is decided here."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from fullfield._check import InputError
from fullfield._ledger.notes import check_entry_kinds, read_json_object
from fullfield.datasets.own import CHARGE_SHOTS
from fullfield.evaluation.run import AUTOMATIC, CONFIG, FAILURE, RESULT
from fullfield.models.weights import WEIGHTS

CHARGE, KUBRIC = "charge-8k", "kubric-8k"
SMALL_SETS = {"KITTI 2015": ("kitti-2015",), "Sintel": ("sintel-final", "sintel-clean"), "Spring": ("spring",)}
"""Data sets of table 8; it does not say which pass of Sintel, and times are alike."""

DATASETS = (CHARGE, KUBRIC, *(name for names in SMALL_SETS.values() for name in names))
"""All of the paper's, by our names."""

PAIRS = {CHARGE: sum(last - first for first, last in CHARGE_SHOTS.values())}
"""Pairs of frames in the paper's data sets whose number it states."""
TRAINING = "sintel"
"""What the paper's checkpoints were fine-tuned on, all of them: ptlflow's name for them and the end of ours."""

VARIANTS = {"default": "Default", "on_demand": "On-Demand", "mixed": "Mixed", "ours": "Ours"}
"""How the correlation is computed."""


@dataclass(frozen=True)
class PaperMethod:
    """A method of the paper.

    Attributes:
        title: as the tables print it.
        names: methods of ours and models of ptlflow, the first preferred; none where there is no implementation.
        sampled: whether it looks a correlation volume up as RAFT does, so that the variants differ.
        updates: flow updates; None where they are the model's own.
        coarse_updates: of the smaller sizes of a cascade; None without a cascade.
    """

    title: str
    names: tuple[str, ...]
    sampled: bool = False
    updates: int | None = None
    coarse_updates: int | None = None


_SEA_RAFT = ("sea-raft-m", "ptlflow:sea_raft_m", "ptlflow:sea_raft")

METHODS: Mapping[str, PaperMethod] = {
    "gmflow": PaperMethod("GMFlow", ("ptlflow:gmflow",)),
    "pwcnet": PaperMethod("PWC-Net", ("ptlflow:pwcnet",)),
    "flow1d": PaperMethod("Flow-1D", ("ptlflow:flow1d",)),
    "dip": PaperMethod("DIP", ("ptlflow:dip",)),
    "flowformer": PaperMethod("FlowFormer", ("ptlflow:flowformer",)),
    "flowformer++": PaperMethod("FlowFormer++", ("ptlflow:flowformer_pp",)),
    "scv": PaperMethod("SCV", ("ptlflow:scv4", "ptlflow:scv8")),
    "hcvflow": PaperMethod("HCVFlow", ()),
    "recover-cx": PaperMethod("ReCoVEr-CX", ("ptlflow:recover_cx",)),
    "waft": PaperMethod("WAFT", tuple(f"ptlflow:waft_{x}" for x in ("twins_a2", "dav2_a2", "dinov3_a2", "dav2_a1"))),
    "ms-raft+": PaperMethod("MS-RAFT+", ("ptlflow:ms_raft_p",), sampled=True),
    "raft": PaperMethod("RAFT", ("raft", "ptlflow:raft"), sampled=True, updates=32),
    "ccmr": PaperMethod("CCMR", ("ptlflow:ccmr", "ptlflow:ccmr_p"), sampled=True),
    "dpflow": PaperMethod("DPFlow", ("ptlflow:dpflow",), sampled=True),
    "sea-raft": PaperMethod("SEA-RAFT", _SEA_RAFT, sampled=True, updates=4),
    "sea-raft-cascaded": PaperMethod("SEA-RAFT (Cascaded)", _SEA_RAFT, sampled=True, updates=4, coarse_updates=4),
    "sea-raft-3+1": PaperMethod("SEA-RAFT 3LR + 1HR", _SEA_RAFT, sampled=True, updates=1, coarse_updates=3),
    "sea-raft-6+2": PaperMethod("SEA-RAFT 6LR + 2HR", _SEA_RAFT, sampled=True, updates=2, coarse_updates=6),
}
"""The paper does not say which of SEA-RAFT's sizes, which SCV and which WAFT it ran."""

# What a lookup of ours is called in the paper; "ptlflow" is a model's own.
_BACKENDS = {
    "dense": "default",
    "ptlflow": "default",
    "reference": "on_demand",
    "prefer-dense": "mixed",  # stored runs; no backend has this name any more
    "mixed": "mixed",
    "cuda": "ours",
    "cpu": "ours",
    "blocks": "ours",
}


@dataclass(frozen=True)
class StoredRun:
    """A run on disk: its configuration, and its result or what stopped it."""

    folder: Path
    config: Mapping[str, Any]
    result: Mapping[str, Any] | None = None
    failure: str | None = None

    @property
    def dataset(self) -> str:
        """The data set's name."""
        return str(self.config["dataset"]["name"])

    @property
    def scale(self) -> str:
        """The processing scale as the tables print it."""
        scale = Fraction(self._parameter("scale", "1"))
        return f"{scale.numerator}/{scale.denominator}"

    @property
    def variant(self) -> str | None:
        """How the correlation was computed; None where the paper has no such variant."""
        if self._parameter("alt_cuda_corr") is not None:
            return "on_demand"
        if self._parameter("patched") is False:
            return "default"
        requested = str(self.config.get("backend", AUTOMATIC))
        if requested != AUTOMATIC:
            return _BACKENDS.get(requested)
        used = {_BACKENDS.get(str(name)) for name in (self.result or {}).get("backends", ())}
        return used.pop() if len(used) == 1 else "ours"

    @property
    def on_gpu(self) -> bool:
        """Whether it ran on a GPU."""
        return self.config.get("device") != "cpu"

    @property
    def has_papers_weights(self) -> bool:
        """Whether it ran with weights fine-tuned on Sintel, as the paper did: by name, or the checksum of a file."""
        name, checksum = str(self._parameter("weights", "")), str(self._parameter("weights_sha256", ""))
        if name == TRAINING or (name in WEIGHTS and name.endswith(f"-{TRAINING}")):
            return True
        known = (entry.sha256 for entry in WEIGHTS.values() if entry.name.endswith(f"-{TRAINING}"))
        return bool(checksum) and any(digest.startswith(checksum) for digest in known if digest)

    @property
    def pairs(self) -> int | None:
        """The number of pairs, where it is less than the paper's."""
        number = self.config["dataset"].get("pairs")
        return number if number is not None and number < PAIRS.get(self.dataset, 0) else None

    def score(self, key: str) -> float | None:
        """Return a metric; None where no pixel counts, or the data set has no truth."""
        value = ((self.result or {}).get("scores") or {}).get(key)
        return None if value is None else float(value)

    def runtime(self, key: str = "mean_s") -> float | None:
        """Seconds a pair."""
        value = (self.result or {}).get("runtime", {}).get(key)
        return None if value is None else float(value)

    @property
    def memory_gib(self) -> float | None:
        """Peak of the GPU's memory."""
        peak = (self.result or {}).get("peak_bytes")
        return None if peak is None else float(peak) / 2**30

    def is_of(self, method: PaperMethod) -> bool:
        """Whether it ran as the paper ran the method, with the same weights."""
        if self.config.get("method") not in method.names or self._parameter("warm_start"):
            return False
        if not self.has_papers_weights:
            return False
        if self._parameter("precision", "exact") != "exact":
            return False
        cascade = bool(self._parameter("cascade", False))
        if cascade != (method.coarse_updates is not None):
            return False
        for name in ("updates", "coarse_updates"):
            requested, had = getattr(method, name), self._parameter(name)
            if requested is not None and had is not None and had != requested:
                return False
        return True

    def _parameter(self, name: str, default: Any = None) -> Any:
        value = self.config["parameters"].get(name)
        return default if value is None else value


def read_runs(folders: Iterable[str | Path]) -> list[StoredRun]:
    """Every run below the folders that has a result or failed for good, by folder.

    Raises InputError for a folder that is not there, or a configuration that cannot be read.
    """
    outcome: dict[Path, StoredRun] = {}
    for folder in map(Path, folders):
        if not folder.is_dir():
            raise InputError(f"{folder}: expected a folder of runs, but it does not exist")
        for path in sorted(folder.rglob(CONFIG)):
            config = read_json_object(path)
            if not ("method" in config and isinstance(config.get("dataset"), dict) and "parameters" in config):
                continue
            check_entry_kinds(path, config, method="text", parameters="object")
            check_entry_kinds(path, config["dataset"], name="text")
            try:
                Fraction(config["parameters"].get("scale") or 1)
            except (ValueError, TypeError, ArithmeticError):
                raise InputError(f"{path}: expected a scale, got {config['parameters']['scale']!r}") from None
            home = path.parent
            result = _result(home / RESULT) if (home / RESULT).is_file() else None
            failure = str(read_json_object(home / FAILURE).get("failure")) if (home / FAILURE).is_file() else None
            if result is not None or failure is not None:
                outcome[home.resolve()] = StoredRun(home, config, result, None if result is not None else failure)
    return list(outcome.values())


def _result(path: Path) -> dict[str, Any]:
    """Return a result with everything that the tables read of it."""
    result = read_json_object(path)
    check_entry_kinds(path, result, averaging="text", runtime="object", peak_bytes="number or null", backends="list")
    check_entry_kinds(path, result["runtime"], **dict.fromkeys(("mean_s", "std_s", "median_s"), "number"))
    if result.get("scores") is not None:
        check_entry_kinds(path, result, scores="object")
        check_entry_kinds(path, result["scores"], **dict.fromkeys(result["scores"], "number or null"))
    return result


@dataclass
class Runs:
    """Stored runs by their place in the paper.

    Args:
        runs: from :func:`read_runs`.
        stand_ins: data sets whose runs stand for those of one of the paper's, by the paper's name.
        pairs: which runs count: None for those over all pairs of the paper, else those over so many.
    """

    runs: Sequence[StoredRun]
    stand_ins: Mapping[str, str] = field(default_factory=dict)
    pairs: int | None = None

    def parts(self) -> list[Runs]:
        """Return the runs over fewer pairs than the paper's, one object per number of pairs, the largest first."""
        numbers = sorted({run.pairs for run in self.runs if run.pairs is not None}, reverse=True)
        return [replace(self, pairs=number) for number in numbers]

    def find(self, method: str, dataset: str, scale: str, variant: str | None = None) -> list[StoredRun]:
        """Return the runs of a row, the preferred first; of one column with a ``variant``.

        On demand RAFT's own extension comes before our reference.
        """
        requested = METHODS[method]
        name = self.stand_ins.get(dataset, dataset)
        fitting = [
            run
            for run in self.runs
            if run.dataset == name
            and run.pairs == self.pairs
            and run.scale == scale
            and run.is_of(requested)
            and (variant is None or self.variant_of(run, requested) == variant)
        ]

        def rank(run: StoredRun) -> tuple[bool, int, str]:
            stands_in = variant == "on_demand" and run.config.get("backend") == "reference"
            return stands_in, requested.names.index(run.config["method"]), str(run.folder)

        return sorted(fitting, key=rank)

    @staticmethod
    def variant_of(run: StoredRun, method: PaperMethod) -> str | None:
        """Return the run's variant; a method that samples no volume has one column only."""
        return run.variant if method.sampled else "default"

    def scored(self, method: str, dataset: str, scale: str) -> StoredRun | None:
        """Return the run whose metrics stand in a row: ours, or the next best variant that has any."""
        for variant in ("ours", "default", "mixed", "on_demand"):
            for run in self.find(method, dataset, scale, variant):
                if run.score("epe") is not None:
                    return run
        return None
