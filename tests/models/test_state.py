"""Weight files: what is read, what is refused, and in which words."""

from __future__ import annotations

import pickle
import random
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from fullfield import InputError
from fullfield.models import RAFT, SEARAFT, RAFTConfig, SEARAFTConfig
from fullfield.models.state import fit, read_state, recognise


@pytest.fixture
def tensors() -> dict[str, Tensor]:
    return {"a.weight": torch.arange(6.0).view(2, 3), "a.bias": torch.ones(2)}


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> bool:
    return list(found) == list(expected) and all(torch.equal(found[key], expected[key]) for key in expected)


@pytest.mark.parametrize("legacy", [False, True])
def test_pytorch_files(tmp_path: Path, tensors: dict[str, Tensor], legacy: bool) -> None:
    path = tmp_path / "w.pth"
    torch.save(tensors, path, _use_new_zipfile_serialization=not legacy)
    state, name = read_state(path)
    assert name == str(path)
    assert same(state, tensors)


def test_safetensors_whatever_their_name(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
    path = tmp_path / "w.pth"
    save_file(tensors, path)
    state, _ = read_state(path)
    assert state.keys() == tensors.keys()
    assert torch.equal(state["a.weight"], tensors["a.weight"])


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "module._orig_mod.", "_orig_mod.module."])
def test_prefixes_and_wrappers_go(tensors: dict[str, Tensor], prefix: str) -> None:
    wrapped = {"epoch": 3, "state_dict": {prefix + key: value for key, value in tensors.items()}}
    assert same(read_state(wrapped)[0], tensors)  # type: ignore[arg-type]


def test_a_prefix_of_some_names_stays(tensors: dict[str, Tensor]) -> None:
    mixed = {"module.x": torch.zeros(1), **tensors}
    assert same(read_state(mixed)[0], mixed)


class Evil:
    def __reduce__(self) -> tuple[Any, ...]:
        return (print, ("opened",))


def test_code_is_not_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "w.pth"
    torch.save({"a": torch.ones(1), "b": Evil()}, path)
    with pytest.raises(InputError, match=r"w\.pth: expected plain weights, got a pickle that also holds code"):
        read_state(path)
    with (tmp_path / "p.pth").open("wb") as file:
        pickle.dump(Evil(), file, protocol=2)
    with pytest.raises(InputError, match=r"p\.pth: "):
        read_state(tmp_path / "p.pth")
    assert "opened" not in capsys.readouterr().out


def test_other_files_are_refused_in_one_line(tmp_path: Path, tensors: dict[str, Tensor]) -> None:
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
            read_state(path)
        assert str(caught.value).startswith(f"{path}: ")
        assert "\n" not in str(caught.value)
    with pytest.raises(InputError, match="a web page, not the weights"):
        read_state(tmp_path / "page")
    with pytest.raises(InputError, match="a pointer of Git LFS"):
        read_state(tmp_path / "pointer")
    with pytest.raises(FileNotFoundError):
        read_state(tmp_path / "nothing")
    for held_instead in ([1, 2], {}, {"a": 1}, {1: torch.ones(1)}):
        torch.save(held_instead, whole)
        with pytest.raises(InputError, match="expected named tensors"):
            read_state(whole)


@pytest.mark.parametrize("legacy", [False, True])
def test_damaged_files_are_refused_in_one_line(tmp_path: Path, tensors: dict[str, Tensor], legacy: bool) -> None:
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
        said = _refusal(path)
        assert said is None or (said.startswith(f"{path}: ") and "\n" not in said)
        refused += said is not None
    assert refused > 30


def _refusal(path: Path) -> str | None:
    try:
        read_state(path)
    except InputError as error:
        return str(error)
    return None


def test_a_program_is_refused_without_a_warning(tmp_path: Path) -> None:
    path = tmp_path / "program.pt"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(nn.Linear(2, 2)).save(str(path))
    with pytest.raises(InputError, match="TorchScript"):
        read_state(path)


def test_what_does_not_fit_is_told_and_nothing_is_loaded(tensors: dict[str, Tensor]) -> None:
    module = nn.ModuleDict({"a": nn.Linear(3, 2), "b": nn.Linear(1, 1)})
    before = {key: value.clone() for key, value in module.state_dict().items()}
    with pytest.raises(InputError) as caught:
        fit(module, {**tensors, "c": torch.ones(1)}, "file", "Model")
    assert str(caught.value) == "file: expected weights of Model; missing b.bias, b.weight; unexpected c"
    other = {**before, "a.weight": torch.ones(2, 4)}
    with pytest.raises(InputError, match=r"a\.weight is \[2, 4\] instead of \[2, 3\]$"):
        fit(module, other, "file", "Model")
    assert all(torch.equal(value, before[key]) for key, value in module.state_dict().items())
    fit(module, {**before, "a.bias": torch.full((2,), 7.0)}, "file", "Model")
    assert module.state_dict()["a.bias"].tolist() == [7.0, 7.0]


def test_models_are_recognised(torchvision: Any, ptlflow: Any) -> None:
    assert recognise(RAFT(RAFTConfig.large()).state_dict()) == "RAFT"
    assert recognise(RAFT(RAFTConfig.small()).state_dict()) == "RAFT-small"
    assert recognise(SEARAFT(SEARAFTConfig.small()).state_dict()) == "SEA-RAFT (S)"
    assert recognise(SEARAFT(SEARAFTConfig.medium()).state_dict()) == "SEA-RAFT (L or M)"
    assert recognise(SEARAFT(SEARAFTConfig.fullfield_s()).state_dict()) == "fullfield-s"
    models = torchvision.models.optical_flow
    assert recognise(models.raft_large(weights=None).state_dict()) == "torchvision's raft_large"
    assert recognise(models.raft_small(weights=None).state_dict()) == "torchvision's raft_small"
    assert recognise(ptlflow.get_model("gma").state_dict()) == "GMA"
    assert recognise({"a": torch.ones(1)}) is None


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
    for _ in range(3000):
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
def test_odd_tensors_are_refused_in_one_line(tmp_path: Path, odd: Tensor, words: str) -> None:
    path = tmp_path / "w.pth"
    torch.save({"a.weight": odd}, path)
    for source in (path, {"a.weight": odd}):
        with pytest.raises(InputError, match=words) as caught:
            read_state(source)
        assert str(caught.value).endswith("at 'a.weight'")
        assert "\n" not in str(caught.value)


def test_deep_wrappers_are_refused_in_one_line(tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    torch.save({"state_dict": torch.ones(1)}, path)
    with pytest.raises(InputError, match="expected named tensors, got dict nested too deeply at 'wrapper'"):
        read_state(_deep())


def test_weights_of_integers_are_refused() -> None:
    module = torch.nn.BatchNorm2d(3)
    state = {name: value.clone() for name, value in module.state_dict().items()}
    state["weight"] = torch.tensor([1, 2, 3])
    with pytest.raises(InputError, match=r"^f: expected floating weights of a norm, got int64 at 'weight'$"):
        fit(module, state, "f", "a norm")
    assert torch.equal(module.weight, torch.ones(3))
    state["bias"] = torch.zeros(3, dtype=torch.bool)
    with pytest.raises(InputError, match="at 'weight' and 1 more"):
        fit(module, state, "f", "a norm")
    fit(module, {**module.state_dict(), "num_batches_tracked": torch.tensor(2)}, "f", "a norm")
    assert module.num_batches_tracked == 2
