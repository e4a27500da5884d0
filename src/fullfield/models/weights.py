"""Catalogue of published weights, and their download and loading. Light: no PyTorch until weights are loaded.

Files are kept in the folder ``weights`` of fullfield's cache (``FULLFIELD_CACHE_DIR``, or the user's cache folder).
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, metadata
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING

from fullfield import _check
from fullfield._check import InputError, SetupError
from fullfield._kernels.cache_folder import iterate_candidate_cache_folders, try_create_private_writable_folder
from fullfield.models.downloads import (
    DownloadError,
    DownloadProgress,
    download_if_missing,
    extract_zip_member_if_missing,
)
from fullfield.models.raft.config import RAFTConfig
from fullfield.models.sea_raft.config import SEARAFTConfig
from fullfield.models.shape import NetworkArchitecture

if TYPE_CHECKING:
    from fullfield.models.raft.model import RAFT
    from fullfield.models.sea_raft.model import SEARAFT

RANDOM = "random"
"""Name of seeded random weights, for timing."""
_SEED = 0

_BSD = "code BSD-3-Clause; none is stated for the weights"
_RANGE = "RGB, scaled to -1 ... 1; sides padded to multiples of 8"


@dataclass(frozen=True)
class WeightsEntry:
    """Published set of weights.

    Attributes:
        name: name on the command line and in :func:`load_weights`.
        models: names of the models' configurations that take it.
        file: name of the file in the cache folder.
        training: data sets in their order.
        page: web page about the weights.
        licence: licence that the authors state.
        url: address of the file; None if the authors publish no direct address that we know.
        archive: name of the download in the cache folder if it is a zip file.
        member: name of the file inside ``archive``.
        sha256: checksum of the file, or its published first digits; None if none is published.
        archive_sha256: checksum of the zip file.
        checked: source of the checksums.
        preprocessing: input that the network expects; :class:`RAFT` and :class:`SEARAFT` prepare it themselves.
        metrics: published results.
        metrics_source: publisher of the results.
        packaged: whether the file is part of fullfield, in this folder.
        in_repository: whether the file is in the folder ``weights`` of fullfield's repository, outside the package.
    """

    name: str
    models: tuple[str, ...]
    file: str
    training: str
    page: str
    licence: str = _BSD
    url: str | None = None
    archive: str | None = None
    member: str | None = None
    sha256: str | None = None
    archive_sha256: str | None = None
    checked: str = ""
    preprocessing: str = _RANGE
    metrics: Mapping[str, float] = field(default_factory=dict, hash=False)
    metrics_source: str = ""
    packaged: bool = False
    in_repository: bool = False

    def __post_init__(self) -> None:
        object.__setattr__(self, "metrics", MappingProxyType(dict(self.metrics)))


_C, _CT = "FlyingChairs", "FlyingChairs, FlyingThings3D"
_CTS = f"{_CT}; then Sintel, KITTI 2015, HD1K and FlyingThings3D"
_CTK = f"{_CTS}; then KITTI 2015"
_OURS = "computed from the file"
_PORTED = "torchvision 0.28, of its port"
_USERS = "as reported by a user of it, whose sums of the other three files are right"


def _create_princeton_weights_entry(
    name: str, training: str, sha256: str, metrics: Mapping[str, float], source: str = _PORTED, checked: str = _OURS
) -> WeightsEntry:
    return WeightsEntry(
        name,
        ("raft-small",) if name == "raft-small" else ("raft",),
        f"{name}.pth",
        training,
        "https://github.com/princeton-vl/RAFT (download_models.sh)",
        url="https://dl.dropboxusercontent.com/s/4j4z58wuv8o0mfz/models.zip",
        archive="raft-models.zip",
        member=f"models/{name}.pth",
        sha256=sha256,
        archive_sha256="4be6101b271f58ec49866da5cf609fd17e86e9cae2483f70630ef4a295dc66bd",
        checked=f"{checked}; the archive's as reported by several users of it",
        metrics=metrics,
        metrics_source=source,
    )


def _create_torchvision_weights_entry(
    version: str, sha256_prefix: str, training: str, metrics: Mapping[str, float]
) -> WeightsEntry:
    size, _, rest = version.partition("_")
    file = f"raft_{version}-{sha256_prefix}.pth"
    origin = "ported from princeton's by torchvision" if version.endswith("V1") else "trained by torchvision"
    return WeightsEntry(
        f"torchvision-{size}-{rest.replace('_', '-').lower()}",
        ("raft-small",) if size == "small" else ("raft",),
        file,
        f"{training} ({origin})",
        "https://pytorch.org/vision/stable/models/raft.html",
        url=f"https://download.pytorch.org/models/{file}",
        sha256=sha256_prefix,
        checked="its first digits, published in the file's name",
        metrics=metrics,
        metrics_source="torchvision 0.28",
    )


def _create_sea_raft_weights_entry(
    size: str,
    stage: str,
    training: str,
    official: str,
    repository: bool = True,
    revision: str | None = None,
    sha256: str | None = None,
    metrics: Mapping[str, float] | None = None,
) -> WeightsEntry:
    page = "https://drive.google.com/drive/folders/1YLovlvUW94vciWvTyLf-p3uWscbOQRWW"
    spring = stage == "spring"
    return WeightsEntry(
        f"sea-raft-{size.lower()}-{stage}",
        ("sea-raft-s",) if size == "S" else ("sea-raft-m", "sea-raft-l"),
        f"{official}.{'safetensors' if repository else 'pth'}",
        training,
        f"https://huggingface.co/MemorySlices/{official}" if repository else page,
        licence="BSD-3-Clause, according to the authors' code that publishes them",
        url=f"https://huggingface.co/MemorySlices/{official}/resolve/{revision}/model.safetensors"
        if revision
        else None,
        sha256=sha256,
        checked="as reported by a user of the file" if sha256 else "",
        preprocessing=_RANGE + ("; the authors halve frames of Spring's size, 1920x1080, first" if spring else ""),
        metrics=metrics or {},
        metrics_source="SEA-RAFT, 2024, abstract, which swaps the two names" if metrics else "",
    )


def _build_training_scores(clean: float, final: float, kitti: float) -> dict[str, float]:
    return {"Sintel clean, train, EPE": clean, "Sintel final, train, EPE": final, "KITTI 2015, train, Fl": kitti}


def _build_test_scores(clean: float, final: float) -> dict[str, float]:
    return {"Sintel clean, test, EPE": clean, "Sintel final, test, EPE": final}


_PORT, _PORT_SMALL = _build_training_scores(1.4411, 2.7894, 17.4506), _build_training_scores(2.1231, 3.2790, 25.2801)
_TARTAN = f"TartanAir, {_CT}; then FlyingThings3D, Sintel, KITTI and HD1K"

_ENTRIES = (
    WeightsEntry(
        "fullfield-s",
        ("fullfield-s",),
        "fullfield_s.safetensors",
        "synthetic pairs of fullfield.training.flow, from pictures that are CC0, public domain, CC-BY or MIT",
        "bundled with fullfield; docs/fullfield-s.md is its model card",
        licence="Apache-2.0",
        packaged=True,
    ),
    WeightsEntry(
        "fullfield-m",
        ("fullfield-m",),
        "fullfield_m.safetensors",
        "synthetic pairs of fullfield.training.flow, from pictures and meshes that are CC0, public domain, CC-BY or "
        "MIT; interim weights",
        "bundled with fullfield; docs/fullfield-m.md is its model card",
        licence="Apache-2.0",
        packaged=True,
    ),
    _create_princeton_weights_entry(
        "raft-chairs", _C, "c6c75465cf995d137f89ca2e2d08594ed390befbb8859f7f65c48bcc8feb0fd7", {}, "", _USERS
    ),
    _create_princeton_weights_entry(
        "raft-things", _CT, "fcfa4125d6418f4de95d84aec20a3c5f4e205101715a79f193243c186ac9a7e1", _PORT
    ),
    _create_princeton_weights_entry(
        "raft-sintel",
        _CTS,
        "90630d2e7d488a0d3ccb5e8194524850c4c05c732ea4ff99799822c7fa5c5cbf",
        _build_test_scores(1.94, 3.18),
    ),
    _create_princeton_weights_entry(
        "raft-kitti",
        _CTK,
        "b9d170362415e1a27bd8402ee966a3ddf0d60df9b2df2c0b4949f5ced490a9e6",
        {"KITTI 2015, test, Fl": 5.10},
        "RAFT, 2020, abstract",
        _USERS,
    ),
    _create_princeton_weights_entry(
        "raft-small", _CT, "c7d41b9cc88442bb8aa911dbb33086dac55a226394b142937ff22d5578717332", _PORT_SMALL
    ),
    _create_torchvision_weights_entry("large_C_T_V1", "22a6c225", _CT, _PORT),
    _create_torchvision_weights_entry("large_C_T_V2", "1bb1363a", _CT, _build_training_scores(1.3822, 2.7161, 16.0679)),
    _create_torchvision_weights_entry("large_C_T_SKHT_V1", "0b8c9e55", _CTS, _build_test_scores(1.94, 3.18)),
    _create_torchvision_weights_entry("large_C_T_SKHT_V2", "ff5fadd5", _CTS, _build_test_scores(1.819, 3.067)),
    _create_torchvision_weights_entry("large_C_T_SKHT_K_V1", "4a6a5039", _CTK, {"KITTI 2015, test, Fl": 5.10}),
    _create_torchvision_weights_entry("large_C_T_SKHT_K_V2", "b5c70766", _CTK, {"KITTI 2015, test, Fl": 5.19}),
    _create_torchvision_weights_entry("small_C_T_V1", "ad48884c", _CT, _PORT_SMALL),
    _create_torchvision_weights_entry("small_C_T_V2", "01064c6d", _CT, _build_training_scores(1.9901, 3.2831, 25.2369)),
    _create_sea_raft_weights_entry(
        "S",
        "sintel",
        _TARTAN,
        "Tartan-C-T-TSKH432x960-S",
        revision="de21657a1519e5b14d2a9c10885ec369a8654c05",
        sha256="9752a49fca0a3f33551d51fec7bc5bd87f93a155b1e9fadd803e8176f4edb423",
    ),
    _create_sea_raft_weights_entry(
        "S", "kitti", f"{_TARTAN}; then KITTI", "Tartan-C-T-TSKH-kitti432x960-S", repository=False
    ),
    _create_sea_raft_weights_entry("S", "spring", f"{_TARTAN}; then Spring", "Tartan-C-T-TSKH-spring540x960-S"),
    _create_sea_raft_weights_entry("M", "sintel", _TARTAN, "Tartan-C-T-TSKH432x960-M", repository=False),
    _create_sea_raft_weights_entry("M", "kitti", f"{_TARTAN}; then KITTI", "Tartan-C-T-TSKH-kitti432x960-M"),
    _create_sea_raft_weights_entry(
        "M",
        "spring",
        f"{_TARTAN}; then Spring",
        "Tartan-C-T-TSKH-spring540x960-M",
        revision="main",
        metrics={"Spring, test, 1px %": 3.69, "Spring, test, EPE": 0.36},
    ),
    WeightsEntry(
        "descriptor",
        ("descriptor",),
        "descriptor.safetensors",
        "synthetic scenes of fullfield.training",
        "the folder weights of fullfield's repository; benchmarks/notes/descriptor.md describes the training",
        licence="Apache-2.0",
        sha256="1794cbf333d041c88e8e16c507d44de483f4528d93341bcfb17af96c3fddd646",
        checked=_OURS,
        preprocessing="points, one per voxel",
        in_repository=True,
    ),
)

WEIGHTS: Mapping[str, WeightsEntry] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""Every entry by its name."""

DEFAULTS: Mapping[str, str] = MappingProxyType(
    {
        "fullfield-s": "fullfield-s",
        "fullfield-m": "fullfield-m",
        "raft": "raft-sintel",
        "raft-small": "raft-small",
        "sea-raft-s": "sea-raft-s-sintel",
        "sea-raft-m": "sea-raft-m-spring",
        "sea-raft-l": "sea-raft-m-spring",
    }
)
"""Entry that a model loads by default."""

_SHAPES = (
    SEARAFTConfig.fullfield_s(), SEARAFTConfig.fullfield_m(), RAFTConfig.large(), RAFTConfig.small(),
    SEARAFTConfig.small(), SEARAFTConfig.medium(), SEARAFTConfig.large(),
)  # fmt: skip
NETWORKS: Mapping[str, NetworkArchitecture] = MappingProxyType({shape.name: shape for shape in _SHAPES})
"""Shape of every network, by the model's name. A new network adds one entry, and one to :data:`DEFAULTS` as soon as it
has published weights."""


def get_weights_entry(name: str) -> WeightsEntry:
    """Return the entry called ``name``; InputError lists the known ones."""
    if name not in WEIGHTS:
        hint = _check.format_did_you_mean_hint(name, [*WEIGHTS])
        _check.require(False, "weights", f"a file or one of {', '.join(WEIGHTS)}", f"{name!r}{hint}")
    return WEIGHTS[name]


def find_local_weights(entry: WeightsEntry) -> Path | None:
    """Return the path of the entry's file, or None if it is not on this machine."""
    if entry.packaged:
        return Path(__file__).with_name(entry.file)
    checkout = Path(__file__).parents[3] / "weights" / entry.file
    if entry.in_repository and checkout.is_file():
        return checkout
    return _find_cached_file(entry.file)


def _find_download_url(entry: WeightsEntry) -> str | None:
    """Return where the entry's file is published; None if no address is known."""
    if not entry.in_repository:
        return entry.url
    try:
        about = metadata("fullfield")
    except PackageNotFoundError:
        return None
    links = dict(line.split(", ", 1) for line in about.get_all("Project-URL") or () if ", " in line)
    repository = links.get("Repository")
    return None if repository is None else f"{repository}/raw/v{about['Version']}/weights/{entry.file}"


def can_obtain_weights(entry_name: str) -> bool:
    """Return whether the entry's file is on this machine, or where it can be downloaded is known."""
    entry = get_weights_entry(entry_name)
    return find_local_weights(entry) is not None or _find_download_url(entry) is not None


def _find_cached_file(file: str) -> Path | None:
    """Return the path of ``file``; another user's is used only in the folder that ``FULLFIELD_CACHE_DIR`` names."""
    named = os.environ.get("FULLFIELD_CACHE_DIR")
    for parent in iterate_candidate_cache_folders():
        path = parent / "weights" / file
        if path.is_file() and ((named and parent == Path(named)) or _is_owned_by_this_user_or_root(path)):
            return path
    return None


def _is_owned_by_this_user_or_root(path: Path) -> bool:
    return not hasattr(os, "getuid") or path.stat().st_uid in (os.getuid(), 0)


def get_or_create_weights_folder() -> Path:
    """Return the folder for new files, created if necessary; OSError if none can be written."""
    tried = [parent / "weights" for parent in iterate_candidate_cache_folders()]
    for folder in tried:
        if try_create_private_writable_folder(folder):
            return folder
    raise OSError(f"no folder for weights can be written ({', '.join(map(str, tried))}); set FULLFIELD_CACHE_DIR")


def fetch_weights(entry: WeightsEntry | str, progress: DownloadProgress | None = None) -> Path:
    """Return the path of the entry's file, downloaded and checked if it is not in the cache.

    Args:
        entry: an entry or its name.
        progress: receives the downloaded bytes and the file's size, if known.

    Raises:
        InputError: if the name is unknown.
        OSError: if the download fails; the line says what to download by hand and where to put it.
    """
    if isinstance(entry, str):
        entry = get_weights_entry(entry)
    path = find_local_weights(entry)
    if path is not None:
        return path
    folder = get_or_create_weights_folder()
    target = folder / entry.file
    address = _find_download_url(entry)
    if address is None and entry.in_repository:
        raise DownloadError(
            f"{entry.name}: no address is known; {format_source_to_cache_copy_instructions(entry)}, "
            "or pass its path (--weights)"
        )
    if address is None:
        raise DownloadError(
            f"{entry.name}: no direct address is known; {_format_manual_download_instructions(entry, target)}"
        )
    try:
        if entry.archive is None or entry.member is None:
            download_if_missing(address, target, sha256=entry.sha256, progress=progress)
        else:
            archive = _find_cached_file(entry.archive) or folder / entry.archive
            if not archive.is_file():
                download_if_missing(address, archive, sha256=entry.archive_sha256, progress=progress)
            extract_zip_member_if_missing(archive, entry.member, target, sha256=entry.sha256)
    except DownloadError as error:
        raise DownloadError(f"{entry.name}: {error}; {_format_manual_download_instructions(entry, target)}") from None
    return target


def format_source_to_cache_copy_instructions(entry: WeightsEntry) -> str:
    """Return how a user of an installed package gets weights that only the repository holds."""
    folder = next(iterate_candidate_cache_folders(), Path("$FULLFIELD_CACHE_DIR")) / "weights"
    return f"copy weights/{entry.file} from fullfield's source to {folder}"


def _format_manual_download_instructions(entry: WeightsEntry, target: Path) -> str:
    description = _find_download_url(entry) or f"{entry.file} from {entry.page}"
    inside = f", take {entry.member} out of it" if entry.member else ""
    return f"fetch {description} by hand{inside} and put it at {target}"


class MissingFileError(InputError, FileNotFoundError):
    """Name of a file of weights that does not exist."""


@dataclass(frozen=True)
class WeightsOrigin:
    """Weights before they are loaded.

    Attributes:
        name: the entry's name, the file's as it was given, or ``"random"``.
        entry: the entry of the catalogue, if it is one.
        path: the file; None for random weights, and for an entry that is not in the cache yet.
    """

    name: str
    entry: WeightsEntry | None = None
    path: Path | None = None

    @property
    def is_random(self) -> bool:
        """True if these are random weights."""
        return self.path is None and self.entry is None

    @property
    def is_missing(self) -> bool:
        """True if the file has to be downloaded."""
        return self.entry is not None and self.path is None

    def fetch(self, progress: DownloadProgress | None = None) -> WeightsOrigin:
        """Return the origin with its file, downloaded if necessary; arguments and errors as :func:`fetch_weights`."""
        if self.entry is None or self.path is not None:
            return self
        return WeightsOrigin(self.name, self.entry, fetch_weights(self.entry, progress))

    def compute_file_stamp(self) -> tuple[object, ...]:
        """Return values that change when the weights do."""
        if self.path is None:
            return (self.name,)
        state = self.path.stat()
        return (str(self.path), state.st_mtime_ns, state.st_size)


def find_weights_origin(model: str, source: str | os.PathLike[str] | WeightsEntry | None = None) -> WeightsOrigin:
    """Return the weights that ``source`` names for the model called ``model``; nothing is downloaded.

    Args:
        model: name of the model's configuration.
        source: a file, an entry or its name, or ``"random"``; None is the model's entry in :data:`DEFAULTS`.

    Raises:
        MissingFileError: if the file does not exist.
        InputError: if the entry is unknown or another model's.
        SetupError: if a file of the package is missing.
    """
    if source is None:
        _check.require(model in DEFAULTS, "weights", f"a file for {model}, which has no published weights", "None")
        source = DEFAULTS[model]
    if isinstance(source, WeightsEntry):
        entry = source
    else:
        name = _check.convert_path_to_text(source, "weights")
        if name == RANDOM:
            return WeightsOrigin(RANDOM)
        path = Path(name)
        if name not in WEIGHTS:
            if path.is_file():
                return WeightsOrigin(name, path=path)
            if path.name != name or path.suffix:
                special = "is no regular file" if path.exists() else "no such file"
                description = "is a folder" if path.is_dir() else special
                raise MissingFileError(
                    f"weights: {name}: {description}; 'fullfield weights list' names the published ones"
                )
        entry = get_weights_entry(name)
    if model in DEFAULTS and model not in entry.models:
        raise InputError(
            f"weights: expected some for {model}, got {entry.name}, which is for {', '.join(entry.models)}"
        )
    cached = find_local_weights(entry)
    if entry.packaged and (cached is None or not cached.is_file()):
        raise SetupError(f"weights: {cached}: missing from this installation; install fullfield again")
    return WeightsOrigin(entry.name, entry, cached)


def load_weights(
    name_or_model: str | NetworkArchitecture | RAFT | SEARAFT,
    source: str | os.PathLike[str] | WeightsEntry | WeightsOrigin | None = None,
    progress: DownloadProgress | None = None,
    *,
    correlation: str | None = None,
) -> RAFT | SEARAFT:
    """Return a model with weights, on the CPU; a new one is in evaluation mode.

    Args:
        name_or_model: ``"fullfield-s"``, ``"fullfield-m"``, ``"raft"``, ``"raft-small"``, ``"sea-raft-s"``,
            ``"sea-raft-m"``, ``"sea-raft-l"``, a shape, or a model to fill, which is returned.
        source: a file, an entry or its name, ``"random"`` (for a new model), or a :class:`WeightsOrigin`; by default
            the model's entry in :data:`DEFAULTS`.
        progress: as for :func:`fetch_weights`.
        correlation: for a new model, the backend of :class:`fullfield.nn.CorrelationPyramid`.

    Raises:
        InputError: if the model, the name or the file does not fit.
        SetupError: if an entry's file is missing from the package, or damaged.
        OSError: if the file cannot be read or downloaded.
    """
    is_new = isinstance(name_or_model, (str, NetworkArchitecture))
    chosen: RAFT | SEARAFT = build_random_model(name_or_model, correlation, seed=_SEED) if is_new else name_or_model  # type: ignore[arg-type,assignment]
    origin = source if isinstance(source, WeightsOrigin) else find_weights_origin(chosen.config.name, source)
    if origin.is_random:
        _check.require(is_new, "weights", "a file or an entry for a model that exists", repr(RANDOM))
        return chosen
    path = origin.fetch(progress).path
    if path is None:
        return chosen
    try:
        chosen.load_checkpoint(path)
    except InputError as error:
        if is_new and origin.entry is not None:  # a file that the caller did not choose
            raise SetupError(str(error)) from None
        raise
    return chosen


def build_random_model(
    architecture: str | NetworkArchitecture, correlation: str | None = None, *, seed: int | None = None
) -> RAFT | SEARAFT:
    """Return a model of that shape, or of the name in :data:`NETWORKS`, with random weights, in evaluation mode.

    Args:
        architecture: a configuration, or a name.
        correlation: backend of :class:`fullfield.nn.CorrelationPyramid`; None chooses.
        seed: seed of the weights, which then leaves PyTorch's own generator as it was; None uses that generator.

    Raises:
        InputError: if the name is unknown.
    """
    import torch

    if isinstance(architecture, str):
        _check.check_choice(architecture, "model", NETWORKS)
        architecture = NETWORKS[architecture]
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)
        model: RAFT | SEARAFT = architecture.import_class("network")(architecture, correlation=correlation)
    return model.float().eval()  # the files' dtype, also if PyTorch's default is another
