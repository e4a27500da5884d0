"""RAFT's files under every name they have."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from fullfield import InputError
from fullfield.models import RAFT, SEARAFT, RAFTConfig, SEARAFTConfig


def equal(one: RAFT, other: RAFT) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return list(ours) == list(theirs) and all(torch.equal(ours[key], theirs[key]) for key in ours)


def princetons(model: RAFT) -> dict[str, Tensor]:
    """A state dict as princeton's code writes it: prefixed, the norms of shortcuts twice."""
    state = {}
    for key, value in model.state_dict().items():
        state[f"module.{key}"] = value
        if ".downsample.1." in key:
            state[f"module.{key.replace('.downsample.1.', '.norm3.')}"] = value
    return state


@pytest.mark.parametrize("small", [False, True])
def test_files_of_every_kind(tmp_path: Path, small: bool) -> None:
    torch.manual_seed(0)
    made = RAFTConfig.small if small else RAFTConfig.large
    model = RAFT(made())
    states: dict[str, dict[str, Tensor]] = {"ours": model.state_dict(), "princeton": princetons(model)}
    states["one of two"] = {k: v for k, v in states["princeton"].items() if ".downsample.1." not in k}
    for name, state in states.items():
        torch.save(state, tmp_path / "w.pth")
        save_file({key: value.clone() for key, value in state.items()}, tmp_path / "w.safetensors")
        for source in (state, tmp_path / "w.pth", str(tmp_path / "w.safetensors")):
            other = RAFT(made())
            assert not equal(model, other)
            other.load_checkpoint(source)
            assert equal(model, other), name


def test_norms_that_differ_are_refused() -> None:
    state = princetons(RAFT())
    key = "module.cnet.layer2.0.norm3.weight"
    state[key] = state[key] + 1
    with pytest.raises(InputError, match=r"norm3.weight and .*downsample.1.weight to be the same norm"):
        RAFT().load_checkpoint(state)


def test_official_files(data_dir: Path) -> None:
    folder = data_dir / "weights"
    for name, config in (("things", RAFTConfig.large()), ("sintel", RAFTConfig.large()), ("small", RAFTConfig.small())):
        path = folder / f"raft-{name}.pth"
        if not path.is_file():
            pytest.skip(f"{path} is absent")
        model = RAFT(config)
        model.load_checkpoint(path)
        held = torch.load(path, map_location="cpu", weights_only=True)
        for key, value in model.state_dict().items():
            assert torch.equal(value, held[f"module.{key}"])
    count = sum(parameter.numel() for parameter in RAFT(RAFTConfig.large()).parameters())
    assert count == 5257536


def test_the_wrong_model_is_named(torchvision: Any, tmp_path: Path) -> None:
    large, small = RAFT(), RAFT(RAFTConfig.small())
    vision = torchvision.models.optical_flow.raft_small(weights=None)
    cases = [
        (large, small.state_dict(), "RAFT; it looks like RAFT-small; missing"),
        (small, large.state_dict(), "RAFT-small; it looks like RAFT; missing"),
        (large, SEARAFT(SEARAFTConfig.small()).state_dict(), r"RAFT; it looks like SEA-RAFT \(S\); missing"),
        (large, vision.state_dict(), "RAFT; it looks like torchvision's raft_small; missing"),
        (small, {"a": torch.ones(1)}, "RAFT-small; missing .* and 103 more; unexpected a$"),
    ]
    for model, state, told in cases:
        path = tmp_path / "w.pth"
        torch.save(state, path)
        with pytest.raises(InputError, match=f"^{path}: expected weights of {told}") as caught:
            model.load_checkpoint(path)
        assert "\n" not in str(caught.value)
        assert len(str(caught.value)) < 500
