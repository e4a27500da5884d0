"""SEA-RAFT's weight files as their authors publish them, and files that are something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield.models.sea_raft import SEARAFT, SEARAFTConfig

TINY = SEARAFTConfig.small(stem_channels=8, stage_channels=(8, 12, 16), channels=16, updates=1)
State = dict[str, Tensor]


def model(seed: int, config: SEARAFTConfig = TINY) -> SEARAFT:
    torch.manual_seed(seed)
    made = SEARAFT(config).eval()
    for name, buffer in made.named_buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
        assert "bn3" not in name
    return made


def official(state: State) -> State:
    """The authors' names: the norm of a shortcut is stored twice."""
    twice = {k.replace(".downsample.1.", ".bn3."): v for k, v in state.items() if ".downsample.1." in k}
    assert len(twice) == 2 * 2 * 5
    return {**twice, **state}


def write(path: Path, state: State, form: str) -> Path:
    everything = official(state)
    if form == "princeton":
        torch.save(everything, path)
    elif form == "parallel":
        torch.save({f"module.{k}": v for k, v in everything.items()}, path)
    elif form == "ptlflow":
        torch.save({"state_dict": everything, "hyper_parameters": {"iters": 4}, "epoch": 3}, path)
    elif form == "ours":
        torch.save(state, path)
    else:
        safetensors = pytest.importorskip("safetensors.torch")
        one = {k: v.contiguous() for k, v in everything.items() if ".downsample.1." not in k}
        safetensors.save_file(one, path)
    return path


FORMS = ("princeton", "parallel", "ptlflow", "ours", "huggingface")


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_loaded(form: str, tmp_path: Path) -> None:
    source, target = model(1), model(2)
    path = write(tmp_path / "weights.bin", source.state_dict(), form)
    target.load_checkpoint(path)
    for key, value in source.state_dict().items():
        assert torch.equal(target.state_dict()[key], value), key
    pictures = torch.rand(2, 1, 3, 64, 64)
    with torch.no_grad():
        assert torch.equal(target(*pictures), source(*pictures))


def test_a_model_saved_by_hugging_face(tmp_path: Path) -> None:
    """Tensors that are shared are stored once there, under the name that sorts first."""
    safetensors = pytest.importorskip("safetensors.torch")
    source, target = model(1), model(2)
    for block in (m for m in source.modules() if isinstance(getattr(m, "downsample", None), torch.nn.Sequential)):
        block.bn3 = block.downsample[1]
    safetensors.save_model(source, str(tmp_path / "model.safetensors"))
    stored = safetensors.load_file(tmp_path / "model.safetensors")
    assert not any(".downsample.1." in key for key in stored)
    target.load_checkpoint(tmp_path / "model.safetensors")
    assert torch.equal(target.fnet.layer2[0].downsample[1].weight, source.fnet.layer2[0].downsample[1].weight)


def test_states_of_ptlflow_are_loaded(ptlflow: Any) -> None:
    for name, config in (("sea_raft_s", SEARAFTConfig.small()), ("sea_raft_l", SEARAFTConfig.large())):
        SEARAFT(config).load_checkpoint(ptlflow.get_model(name).state_dict())


def refused(target: SEARAFT, source: Any) -> str:
    before = {k: v.clone() for k, v in target.state_dict().items()}
    with pytest.raises(InputError) as caught:
        target.load_checkpoint(source)
    for key, value in target.state_dict().items():
        assert torch.equal(before[key], value), "the model was changed"
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_weights_of_another_size_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "M.pth"
    torch.save(official(model(1, TINY.replace(backbone="resnet34")).state_dict()), path)
    message = refused(model(2), path)
    assert message.startswith(f"{path}: expected weights of SEA-RAFT (S); it looks like SEA-RAFT (L or M); unexpected ")
    narrow = refused(model(2), model(1, TINY.replace(channels=12)).state_dict())
    assert narrow.startswith(
        "state dict: expected weights of SEA-RAFT (S); cnet.final_conv.weight is [24, 16, 1, 1] instead of "
    )


def test_incomplete_or_inconsistent_weights_are_refused() -> None:
    state = official(model(1).state_dict())
    missing = {k: v for k, v in state.items() if k != "flow_head.2.bias"}
    assert refused(model(2), missing) == "state dict: expected weights of SEA-RAFT (S); missing flow_head.2.bias"
    key = "fnet.layer2.0.bn3.weight"
    twins = {**state, key: state[key] + 1}
    assert "to be the same norm, they differ" in refused(model(2), twins)
    assert "unexpected head.weight" in refused(model(2), {**state, "head.weight": torch.zeros(1)})


def test_other_files_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "page.pth"
    text.write_text("<html>not found</html>")
    assert "page.pth: expected weights" in refused(model(2), text)
    with pytest.raises(OSError):
        model(2).load_checkpoint(tmp_path / "absent.pth")
    assert "expected named tensors" in refused(model(2), {"args": 3})
