"""Weight files of RAFT and SEA-RAFT as their authors and others publish them, and files that are something else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from tiny_networks import CONFIGS, built
from torch import Tensor

from fullfield import InputError
from fullfield.models import RAFT, SEARAFT, RAFTConfig, SEARAFTConfig

Network = RAFT | SEARAFT
State = dict[str, Tensor]


def model(seed: int, name: str = "sea-raft", **changes: Any) -> Network:
    torch.manual_seed(seed)
    made = built(CONFIGS[name].replace(**changes)).eval()
    for key, buffer in made.named_buffers():
        if buffer.is_floating_point():
            buffer.uniform_(0.5, 1.5)
        assert "bn3" not in key
    return made


def official(state: State, name: str = "sea-raft") -> State:
    """The authors' names: the norm of a shortcut is stored twice."""
    twin = ".bn3." if name == "sea-raft" else ".norm3."
    twice = {key.replace(".downsample.1.", twin): value for key, value in state.items() if ".downsample.1." in key}
    assert bool(twice) == (name != "raft-small")  # whose norms of shortcuts have no numbers
    return {**twice, **state}


def equal(one: Network, other: Network) -> bool:
    ours, theirs = one.state_dict(), other.state_dict()
    return list(ours) == list(theirs) and all(torch.equal(ours[key], theirs[key]) for key in ours)


@pytest.mark.parametrize("name", CONFIGS)
def test_files_of_every_kind(tmp_path: Path, name: str) -> None:
    source = model(1, name)
    state = source.state_dict()
    everything = official(state, name)
    once = {key: value for key, value in everything.items() if ".downsample.1." not in key}
    states = {
        "ours": state,
        "authors": everything,
        "parallel": {f"module.{key}": value for key, value in everything.items()},
        "hugging face": once,
    }
    lightning = {"state_dict": everything, "hyper_parameters": {"iters": 4}, "epoch": 3}
    torch.save(lightning, tmp_path / "lightning.ckpt")
    sources: list[Any] = [tmp_path / "lightning.ckpt"]
    for kind, held in states.items():
        torch.save(held, tmp_path / f"{kind}.pth")
        save_file({key: value.clone() for key, value in held.items()}, tmp_path / f"{kind}.safetensors")
        sources += [held, tmp_path / f"{kind}.pth", str(tmp_path / f"{kind}.safetensors")]
    for given in sources:
        target = model(2, name)
        assert not equal(source, target)
        target.load_checkpoint(given)
        assert equal(source, target), given


def test_a_model_saved_by_hugging_face(tmp_path: Path) -> None:
    """Tensors that are shared are stored once there, under the name that sorts first."""
    source, target = model(1), model(2)
    for block in (m for m in source.modules() if isinstance(getattr(m, "downsample", None), torch.nn.Sequential)):
        block.bn3 = block.downsample[1]
    save_model(source, str(tmp_path / "model.safetensors"))
    assert not any(".downsample.1." in key for key in load_file(tmp_path / "model.safetensors"))
    target.load_checkpoint(tmp_path / "model.safetensors")
    assert torch.equal(target.fnet.layer2[0].downsample[1].weight, source.fnet.layer2[0].downsample[1].weight)


def test_states_of_ptlflow_are_loaded(ptlflow: Any) -> None:
    for name, config in (("sea_raft_s", SEARAFTConfig.small()), ("sea_raft_l", SEARAFTConfig.large())):
        SEARAFT(config).load_checkpoint(ptlflow.get_model(name).state_dict())


def test_official_files(data_dir: Path) -> None:
    for name, config in (("things", RAFTConfig.large()), ("sintel", RAFTConfig.large()), ("small", RAFTConfig.small())):
        path = data_dir / "weights" / f"raft-{name}.pth"
        if not path.is_file():
            pytest.skip(f"{path} is absent")
        loaded = RAFT(config)
        loaded.load_checkpoint(path)
        held = torch.load(path, map_location="cpu", weights_only=True)
        for key, value in loaded.state_dict().items():
            assert torch.equal(value, held[f"module.{key}"])
    assert sum(parameter.numel() for parameter in RAFT(RAFTConfig.large()).parameters()) == 5257536


def refused(target: Network, source: Any) -> str:
    before = {key: value.clone() for key, value in target.state_dict().items()}
    with pytest.raises(InputError) as caught:
        target.load_checkpoint(source)
    for key, value in target.state_dict().items():
        assert torch.equal(before[key], value), "the model was changed"
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 500
    return message


def test_the_wrong_model_is_named(torchvision: Any, tmp_path: Path) -> None:
    large, small, tiny = model(2, "raft"), model(2, "raft-small"), model(2)
    vision = torchvision.models.optical_flow.raft_small(weights=None)
    path, narrow = tmp_path / "w.pth", model(1, channels=12).state_dict()
    for target, state, told in (
        (large, small.state_dict(), "RAFT; it looks like RAFT-small; missing"),
        (small, large.state_dict(), "RAFT-small; it looks like RAFT; missing"),
        (large, SEARAFT(SEARAFTConfig.small()).state_dict(), "RAFT; it looks like SEA-RAFT (S); missing"),
        (large, vision.state_dict(), "RAFT; it looks like torchvision's raft_small; missing"),
        (small, {"a": torch.ones(1)}, "RAFT-small; missing "),
        (
            tiny,
            official(model(1, backbone="resnet34").state_dict()),
            "SEA-RAFT (S); it looks like SEA-RAFT (L or M); unexpected ",
        ),
        (tiny, narrow, "SEA-RAFT (S); cnet.final_conv.weight is [24, 16, 1, 1] instead of "),
    ):
        torch.save(state, path)
        assert refused(target, path).startswith(f"{path}: expected weights of {told}")
    assert refused(small, {"a": torch.ones(1)}).endswith(" and 103 more; unexpected a")
    assert refused(tiny, narrow).startswith("state dict: expected weights of SEA-RAFT (S); ")


def test_incomplete_or_inconsistent_weights_are_refused() -> None:
    state, target = official(model(1).state_dict()), model(2)
    missing = {key: value for key, value in state.items() if key != "flow_head.2.bias"}
    assert refused(target, missing) == "state dict: expected weights of SEA-RAFT (S); missing flow_head.2.bias"
    assert "unexpected head.weight" in refused(target, {**state, "head.weight": torch.zeros(1)})
    large = official(model(1, "raft").state_dict(), "raft")
    for network, twins, twin in (
        (target, state, "fnet.layer2.0.bn3.weight"),
        (model(2, "raft"), large, "cnet.layer2.0.norm3.weight"),
    ):
        told = refused(network, {**{key: twins[key] for key in twins if key != twin}, twin: twins[twin] + 1})
        original = twin.rsplit(".", 2)[0] + ".downsample.1.weight"
        assert f"{twin} and " in told
        assert f"{original} to be the same norm, they differ" in told


def test_other_files_are_refused(tmp_path: Path) -> None:
    text = tmp_path / "page.pth"
    text.write_text("<html>not found</html>")
    assert "page.pth: expected weights" in refused(model(2), text)
    with pytest.raises(OSError):
        model(2).load_checkpoint(tmp_path / "absent.pth")
    assert "expected named tensors" in refused(model(2), {"args": 3})
