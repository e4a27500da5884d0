"""The entries, and how a model gets its weights."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import re
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from fullfield import SetupError
from fullfield._kernels.cache_folder import iterate_candidate_cache_folders
from fullfield.models import RAFT, RAFTConfig, fetch_weights, load_weights, weights
from fullfield.models.downloads import DownloadError
from fullfield.models.weights import (
    DEFAULTS,
    WEIGHTS,
    WeightsEntry,
    build_random_model,
    find_local_weights,
    get_or_create_weights_folder,
)
from refusals import refuses

pytestmark = pytest.mark.unit

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FULLFIELD_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path / "temporary"))
    return tmp_path / "cache"


@pytest.fixture
def served(tmp_path: Path) -> Path:
    """A file of weights whose address needs no server."""
    torch.manual_seed(0)
    path = tmp_path / "served.pth"
    torch.save(RAFT(RAFTConfig.small()).state_dict(), path)
    return path


def entry(path: Path, **changes: Any) -> WeightsEntry:
    base = WeightsEntry("mine", ("raft-small",), "mine.pth", "nothing", "a page", url=path.as_uri())
    return dataclasses.replace(base, **changes)


def test_weights_entries_are_complete() -> None:
    assert len(WEIGHTS) == 22
    files = [one.file for one in WEIGHTS.values()]
    assert len(set(files)) == len(files)
    for name, one in WEIGHTS.items():
        assert one.name == name
        assert set(one.models) <= {*DEFAULTS, "descriptor"}
        assert one.page.startswith("https://") or one.packaged or one.in_repository
        assert one.packaged == (name in ("fullfield-s", "fullfield-m"))
        assert one.in_repository == (name == "descriptor")
        assert (one.packaged or one.in_repository) == (find_local_weights(one) is not None)
        assert one.url is None or one.url.startswith("https://")
        assert (one.archive is None) == (one.member is None) == (one.archive_sha256 is None)
        assert one.sha256 is None or re.fullmatch("[0-9a-f]{8,64}", one.sha256)
        assert bool(one.sha256) == bool(one.checked)
        assert bool(one.metrics) == bool(one.metrics_source)
        assert one.licence
        with pytest.raises(dataclasses.FrozenInstanceError):
            one.name = "other"  # type: ignore[misc]
        with pytest.raises(TypeError):
            one.metrics["x"] = 1.0  # type: ignore[index]
    for model, name in DEFAULTS.items():
        assert model in WEIGHTS[name].models
        assert WEIGHTS[name].packaged or WEIGHTS[name].url is not None
        made = build_random_model(model)
        assert made.config.name == model
        assert not made.training


def test_weights_entries_match_torchvision(torchvision: Any) -> None:
    models = torchvision.models.optical_flow
    for size, published in (("large", models.Raft_Large_Weights), ("small", models.Raft_Small_Weights)):
        for one in published:
            ours = WEIGHTS[f"torchvision-{size}-{one.name.replace('_', '-').lower()}"]
            assert ours.url == one.url
            assert f"-{ours.sha256}.pth" in one.url
            told = {value for group in one.meta["_metrics"].values() for value in group.values()}
            assert set(ours.metrics.values()) <= told


def test_weights_checksums_match_files(data_dir: Path) -> None:
    for name in ("raft-things", "raft-sintel", "raft-small"):
        path = data_dir / "weights" / f"{name}.pth"
        if not path.is_file():
            pytest.skip(f"{path} is absent")
        assert hashlib.sha256(path.read_bytes()).hexdigest() == WEIGHTS[name].sha256


def test_fetch_weights_downloads_once(served: Path, cache: Path) -> None:
    told: list[int] = []
    one = entry(served, sha256=hashlib.sha256(served.read_bytes()).hexdigest())
    assert find_local_weights(one) is None
    path = fetch_weights(one, lambda done, _: told.append(done))
    assert path == cache / "weights" / "mine.pth" == get_or_create_weights_folder() / "mine.pth"
    assert told[-1] == served.stat().st_size
    served.unlink()
    assert fetch_weights(one) == path == find_local_weights(one)


def test_fetch_weights_extracts_archive_member(served: Path, tmp_path: Path, cache: Path) -> None:
    archive = tmp_path / "all.zip"
    with zipfile.ZipFile(archive, "w") as made:
        made.write(served, "models/mine.pth")
        made.write(served, "models/other.pth")
    one = entry(archive, archive="kept.zip", member="models/mine.pth")
    assert fetch_weights(one).read_bytes() == served.read_bytes()
    archive.unlink()  # the second comes from the archive that was kept
    other = dataclasses.replace(one, file="other.pth", member="models/other.pth")
    assert fetch_weights(other) == cache / "weights" / "other.pth"


def test_fetch_weights_failure_explains_manual_download(
    served: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put, folder = (re.escape(str(path)) for path in (cache / "weights" / "mine.pth", cache / "weights"))
    with pytest.raises(DownloadError, match=f"^mine: .*SHA-256 abcd, .*; fetch file:.* by hand and put it at {put}$"):
        fetch_weights(entry(served, sha256="abcd"))
    unknown = entry(served, url=None)
    with pytest.raises(DownloadError, match=f"mine.pth from a page by hand and put it at {put}$"):
        fetch_weights(unknown)
    ours = entry(served, url=None, in_repository=True)
    with monkeypatch.context() as patch:
        patch.setattr("fullfield.models.weights._find_download_url", lambda _: None)
        with pytest.raises(
            DownloadError, match=rf"copy weights/mine\.pth from fullfield's source to {folder}, or pass"
        ):
            fetch_weights(ours)
    offline = entry(served, url="http://127.0.0.1:9/all.zip", archive="all.zip", member="models/mine.pth")
    with pytest.raises(
        DownloadError, match=f"cannot be reached .*, take models/mine.pth out of it and put it at {put}$"
    ):
        fetch_weights(offline)
    served.rename(cache / "weights" / "mine.pth")  # and doing so works
    assert load_weights("raft-small", unknown).config.name == "raft-small"


def test_load_weights_accepts_models_and_names(served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(1)
    monkeypatch.setattr(weights, "WEIGHTS", {"raft-small": entry(served, name="raft-small")})
    truth = torch.load(served, weights_only=True)["fnet.conv1.weight"]
    mine = RAFT(RAFTConfig.small()).train()
    for loaded in (
        load_weights("raft-small"),
        load_weights("raft-small", "raft-small"),
        load_weights("raft-small", str(served)),
        load_weights("raft-small", served),
        load_weights(mine),
    ):
        assert torch.equal(loaded.fnet.conv1.weight, truth)
        assert loaded.training == (loaded is mine)


def test_load_weights_names_bad_arguments(served: Path) -> None:
    for arguments, message in (
        (("flownet",), r"^model: expected one of fullfield-s, fullfield-m, raft, raft-small, sea-raft-s"),
        (
            ("raft", "raft-thing"),
            r"^weights: expected a file or one of fullfield-s, fullfield-m, raft-chairs, .*, got 'raft-thing'",
        ),
        (("raft", "raft-small"), r"^weights: expected some for raft, got raft-small, which is for raft-small"),
        (("raft", served), "expected weights of RAFT; it looks like RAFT-small"),
        (("sea-raft-s", "sea-raft-m-spring"), "^weights: expected some for sea-raft-s, got sea-raft-m-spring"),
        (("raft", "folder/none.pth"), "^weights: folder/none.pth: no such file"),
        (("raft", "none.pth"), "^weights: none.pth: no such file; 'fullfield weights list' names the published ones"),
    ):
        refuses(message, load_weights, *arguments)
    with pytest.raises(FileNotFoundError):
        load_weights("raft", "missing.pth")


def test_models_page_lists_every_entry() -> None:
    page = (ROOT / "docs" / "models.md").read_text("utf-8")
    rows = re.findall(r"^\| (`.+) \| (`.+) \| (.+) \|$", page, re.MULTILINE)
    for name, one in WEIGHTS.items():
        (row,) = [row for row in rows if f"`{name}`" in row[1]]
        kind = "in the package" if one.packaged else "from the repository" if one.in_repository else "by hand"
        assert row[2] == ("yes" if one.url else kind), name
        assert all(f"`{model}`" in row[0] for model in one.models), name
    for model, name in DEFAULTS.items():
        assert any(f"`{model}`" in row[0] and f"`{name}` (default)" in row[1] for row in rows), model


def test_find_cached_weights_trusts_named_folder(cache: Path, served: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = entry(served)
    *_, temporary = iterate_candidate_cache_folders()
    for folder in (temporary, cache):
        (folder / "weights").mkdir(parents=True)
        (folder / "weights" / "mine.pth").write_bytes(b"somebody's")
    monkeypatch.setattr("fullfield.models.weights._is_owned_by_this_user_or_root", lambda _: False)
    assert find_local_weights(mine) == cache / "weights" / "mine.pth"
    (cache / "weights" / "mine.pth").unlink()
    assert find_local_weights(mine) is None


@pytest.mark.skipif(not hasattr(os, "getuid"), reason="files have no owner here")
def test_weights_is_own_refuses_other_owners() -> None:
    for owner, ours in ((os.getuid(), True), (0, True), (os.getuid() + 1, False)):
        path = SimpleNamespace(stat=lambda owner=owner: SimpleNamespace(st_uid=owner))
        assert weights._is_owned_by_this_user_or_root(path) is ours  # type: ignore[arg-type]


def test_missing_or_damaged_file_of_package_is_setup_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    packaged = find_local_weights(WEIGHTS["fullfield-s"])
    assert packaged is not None
    content = packaged.read_bytes()
    monkeypatch.setattr(weights, "__file__", str(tmp_path / "weights.py"))
    with pytest.raises(SetupError, match=r"weights: .*fullfield_s.safetensors: missing from this installation"):
        load_weights("fullfield-s")
    (tmp_path / packaged.name).write_bytes(content[: len(content) // 2])
    with pytest.raises(SetupError, match=r"fullfield_s.safetensors: "):
        load_weights("fullfield-s")
    (tmp_path / packaged.name).write_bytes(content)
    assert load_weights("fullfield-s").config.name == "fullfield-s"
