"""Weight files as their authors and others publish them: what is read, what is refused, and in which words."""

from __future__ import annotations

import pickle
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file, save_model
from tiny_networks import CONFIGS, built
from torch import Tensor, nn

from fullfield import InputError
from fullfield.models import RAFT, SEARAFT, RAFTConfig, SEARAFTConfig, load_weights
from fullfield.models.state import load_state_into, read_state_dict_and_name, recognize_network_if_possible
from refusals import refuses

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
def test_load_weights_reads_every_file_kind(tmp_path: Path, name: str) -> None:
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


def test_load_weights_reads_hugging_face_checkpoint(tmp_path: Path) -> None:
    """Tensors that are shared are stored once there, under the name that sorts first."""
    source, target = model(1), model(2)
    for block in (m for m in source.modules() if isinstance(getattr(m, "downsample", None), torch.nn.Sequential)):
        block.bn3 = block.downsample[1]
    save_model(source, str(tmp_path / "model.safetensors"))
    assert not any(".downsample.1." in key for key in load_file(tmp_path / "model.safetensors"))
    target.load_checkpoint(tmp_path / "model.safetensors")
    assert torch.equal(target.fnet.layer2[0].downsample[1].weight, source.fnet.layer2[0].downsample[1].weight)


def test_load_weights_reads_official_files(data_dir: Path) -> None:
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


def test_load_weights_names_wrong_model(torchvision: Any, tmp_path: Path) -> None:
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
        (tiny, narrow, "SEA-RAFT (S); cnet.final_conv.weight is [24, 24, 1, 1] instead of "),
    ):
        torch.save(state, path)
        assert refused(target, path).startswith(f"{path}: expected weights of {told}")
    assert refused(small, {"a": torch.ones(1)}).endswith(" and 103 more; unexpected a")
    assert refused(tiny, narrow).startswith("state dict: expected weights of SEA-RAFT (S); ")


def test_load_weights_refuses_incomplete_or_inconsistent_weights() -> None:
    state, target = official(model(1).state_dict()), model(2)
    missing = {key: value for key, value in state.items() if key != "flow_head.2.bias"}
    assert refused(target, missing) == "state dict: expected weights of SEA-RAFT (S); missing flow_head.2.bias"
    assert "unexpected head.weight" in refused(target, {**state, "head.weight": torch.zeros(1)})
    large = official(model(1, "raft").state_dict(), "raft")
    for network, twins, twin in (
        (target, state, "fnet.layer2.0.bn3.weight"),
        (model(2, "raft"), large, "cnet.layer2.0.norm3.weight"),
    ):
        others = {key: twins[key] for key in twins if key != twin}
        original = twin.rsplit(".", 2)[0] + ".downsample.1.weight"
        told = refused(network, {**others, twin: twins[twin] + 1})
        assert f"expected {twin} and {original} to be the same norm, they differ" in told
        told = refused(network, {twin: twins[twin] + 1, **others})
        assert f"expected {original} and {twin} to be the same norm, they differ" in told


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    return {"a.weight": torch.arange(6.0).view(2, 3), "a.bias": torch.ones(2)}


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return list(found) == list(expected) and all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("legacy", [False, True])
def test_load_weights_reads_pytorch_files(tmp_path: Path, tensors: dict[str, Tensor], legacy: bool) -> None:
    path = tmp_path / "w.pth"
    torch.save(tensors, path, _use_new_zipfile_serialization=not legacy)
    state, name = read_state_dict_and_name(path)
    assert name == str(path)
    assert same(state, tensors)


def test_read_state_dict_keeps_tensor_names(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    path = tmp_path / "w.pth"
    save_file(tensors, path)
    state, _ = read_state_dict_and_name(path)
    assert state.keys() == tensors.keys()
    assert torch.equal(state["a.weight"], tensors["a.weight"])
    mixed = {"module.x": torch.zeros(1), **tensors}
    assert same(read_state_dict_and_name(mixed)[0], mixed)


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_read_state_dict_removes_prefixes_and_wrappers(tensors: dict[str, Tensor], prefix: str) -> None:
    wrapped = {"epoch": 3, "state_dict": {prefix + key: value for key, value in tensors.items()}}
    assert same(read_state_dict_and_name(wrapped)[0], tensors)  # type: ignore[arg-type]


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("opened",))


def test_read_state_dict_refuses_code(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.pth"
    torch.save({"a": torch.ones(1), "b": Evil()}, path)
    refuses(r"w\.pth: expected plain weights, got a pickle that also holds code", read_state_dict_and_name, path)
    with (tmp_path / "p.pth").open("wb") as file:
        pickle.dump(Evil(), file, protocol=2)
    refuses(r"p\.pth: ", read_state_dict_and_name, tmp_path / "p.pth")
    assert "opened" not in capsys.readouterr().out
    path = tmp_path / "program.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(nn.Linear(2, 2)).save(str(path))
    refuses("TorchScript", read_state_dict_and_name, path)


def test_read_state_dict_refuses_other_files(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    whole = tmp_path / "whole.pth"
    torch.save(tensors, whole)
    held = whole.read_bytes()
    tensor_file = tmp_path / "t.safetensors"
    save_file(tensors, tensor_file)
    contents = {
        "empty": b"",
        "page": b"<!DOCTYPE html><html>",
        "text": b"not weights at all, but long enough to look at",
        "pointer": b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 21000000\n",
        "cut": held[: len(held) // 2],
        "zip": b"PK\x03\x04" + bytes(64),
        "pickle": b"\x80\x02garbage",
        "safe": tensor_file.read_bytes()[:-4],
    }
    for name, content in contents.items():
        path = tmp_path / name
        path.write_bytes(content)
        with pytest.raises(InputError) as caught:
            read_state_dict_and_name(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)
    refuses("a web page, not the weights", read_state_dict_and_name, tmp_path / "page")
    refuses("a pointer of Git LFS", read_state_dict_and_name, tmp_path / "pointer")
    with pytest.raises(FileNotFoundError):
        read_state_dict_and_name(tmp_path / "nothing")
    for held_instead in ([1, 2], {}, {"a": 1}, {1: torch.ones(1)}):
        torch.save(held_instead, whole)
        refuses("expected named tensors", read_state_dict_and_name, whole)


def test_load_weights_names_truncated_file(tmp_path: Path) -> None:
    """PyTorch's reader raises an OSError without a name where the archive's end would lie before the file's begin."""
    torch.save(load_weights("fullfield-s").state_dict(), tmp_path / "whole.pth")
    whole = (tmp_path / "whole.pth").read_bytes()
    path = tmp_path / "cut.pth"
    for length in (10, 1000, 5000, 20_000, len(whole) - 1):
        path.write_bytes(whole[:length])
        line = _refusal(path)
        assert line is not None
        assert line.startswith(f"{path}: expected a PyTorch file of weights, cannot be read (")
        assert line.endswith(")")
        assert "internal" not in line


@pytest.mark.parametrize("legacy", [False, True])
def test_read_state_dict_refuses_damaged_files(tmp_path: Path, tensors: dict[str, Tensor], legacy: bool) -> None:
    path = tmp_path / "w.pth"
    torch.save(tensors, path, _use_new_zipfile_serialization=not legacy)
    whole = path.read_bytes()
    dice = random.Random(3)
    refused = 0
    for _ in range(300):
        damaged = bytearray(whole)
        for _ in range(dice.randrange(1, 6)):
            damaged[dice.randrange(len(damaged))] = dice.randrange(256)
        path.write_bytes(damaged)
        line = _refusal(path)
        assert line is None or (line.startswith(f"{path}: ") and "\n" not in line)
        refused += line is not None
    assert refused > 30


def _refusal(path: Path) -> str | None:
    try:
        read_state_dict_and_name(path)
    except InputError as error:
        return str(error)
    return None


def test_load_weights_refuses_mismatch_without_loading(tensors: dict[str, Tensor]) -> None:
    module = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(1, 1)})
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with pytest.raises(InputError) as caught:
        load_state_into(module, {**tensors, "c": torch.ones(1)}, "file", "Model")
    assert str(caught.value) == "file: expected weights of Model; missing b.bias, b.weight; unexpected c"
    other = {**before, "a.weight": torch.ones(2, 4)}
    refuses(r"a\.weight is \[2, 4\] instead of \[2, 3\]$", load_state_into, module, other, "file", "Model")
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    load_state_into(module, {**before, "a.bias": torch.full((2,), 7.0)}, "file", "Model")
    assert module.state_dict()["a.bias"].tolist() == [7.0, 7.0]


def test_recognize_network_returns_name_of_network(torchvision: Any, ptlflow: Any) -> None:
    assert recognize_network_if_possible(RAFT(RAFTConfig.large()).state_dict()) == "RAFT"
    assert recognize_network_if_possible(RAFT(RAFTConfig.small()).state_dict()) == "RAFT-small"
    assert recognize_network_if_possible(SEARAFT(SEARAFTConfig.small()).state_dict()) == "SEA-RAFT (S)"
    assert recognize_network_if_possible(SEARAFT(SEARAFTConfig.medium()).state_dict()) == "SEA-RAFT (L or M)"
    assert recognize_network_if_possible(SEARAFT(SEARAFTConfig.fullfield_s()).state_dict()) == "fullfield-s"
    models = torchvision.models.optical_flow
    assert recognize_network_if_possible(models.raft_large(weights=None).state_dict()) == "torchvision's raft_large"
    assert recognize_network_if_possible(models.raft_small(weights=None).state_dict()) == "torchvision's raft_small"
    assert recognize_network_if_possible(ptlflow.get_model("gma").state_dict()) == "GMA"
    assert recognize_network_if_possible({"a": torch.ones(1)}) is None


def _nested() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def _quantised() -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)


def _deep() -> dict[str, Any]:
    held: dict[str, Any] = {"a": torch.ones(1)}
    for _ in range(100_000):
        held = {"wrapper": held}
    return held


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (torch.empty(2, 3, device="meta"), "a tensor without data"),
        (torch.eye(3).to_sparse(), "a sparse_coo tensor"),
        (_nested(), "a nested tensor"),
        (_quantised(), "a quantised tensor"),
        (torch.ones(2, 3, dtype=torch.complex64), "a complex64 tensor"),
    ],
    ids=["meta", "coo", "nested", "quantised", "complex"],
)
def test_read_state_dict_refuses_unsupported_tensors(tmp_path: Path, odd: Tensor, words: str) -> None:
    path = tmp_path / "w.pth"
    torch.save({"a.weight": odd}, path)
    for source in (path, {"a.weight": odd}):
        caught = refuses(words, read_state_dict_and_name, source)
        assert caught.endswith("at 'a.weight'")


def test_read_state_dict_refuses_deep_wrappers(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save({"state_dict": torch.ones(1)}, path)
    refuses("expected named tensors, got dict nested too deeply at 'wrapper'", read_state_dict_and_name, _deep())


def test_load_weights_refuses_integer_weights() -> None:
    module = torch.nn.BatchNorm2d(3)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    state["weight"] = torch.tensor([1, 2, 3])
    refuses(
        r"^f: expected floating weights of a norm, got int64 at 'weight'$",
        load_state_into,
        module,
        state,
        "f",
        "a norm",
    )
    assert torch.equal(module.weight, torch.ones(3))
    state["bias"] = torch.zeros(3, dtype=torch.bool)
    refuses("at 'weight' and 1 more", load_state_into, module, state, "f", "a norm")
    load_state_into(module, {**module.state_dict(), "num_batches_tracked": torch.tensor(2)}, "f", "a norm")
    assert module.num_batches_tracked == 2
