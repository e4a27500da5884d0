"""Exported networks: the ONNX file computes what the network does."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fullfield import InputError
from fullfield.models import RAFT, SEARAFT, RAFTConfig, SEARAFTConfig, export
from fullfield.models.export import export_onnx
from fullfield.models.framing import STRIDE
from fullfield.ops.correlation.traceable import FORMS
from refusals import refuses

Network = RAFT | SEARAFT
SEA_RAFT = SEARAFTConfig.small(stem_channels=8, stage_channels=(8, 12, 16), channels=16, refinements=1, updates=3)
SMALL = RAFTConfig.small(
    encoder_channels=(8, 12, 16), feature_channels=16, hidden_channels=16, context_channels=8, updates=3
)
LARGE = RAFTConfig.large(
    encoder_channels=(8, 12, 16), feature_channels=16, hidden_channels=16, context_channels=8, updates=3
)


def network(config: RAFTConfig | SEARAFTConfig) -> Network:
    """With one block for each of the encoders' stages: the others are of the first stage's kind."""
    torch.manual_seed(1)
    model: Network = SEARAFT(config) if isinstance(config, SEARAFTConfig) else RAFT(config)
    for encoder in (model.fnet, model.cnet):
        for stage in (encoder.layer1, encoder.layer2, encoder.layer3):
            del stage[1:]
    for name, parameter in model.named_parameters():
        if name.endswith("gamma"):
            parameter.data.fill_(0.3)
    return model.eval()


def frames(height: int, width: int, batch: int = 1) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(height + width)
    first, second = torch.rand(2, batch, 3, height, width, generator=generator)
    return first, second


def run(path: Path, pictures: tuple[Tensor, Tensor]) -> Tensor:
    onnxruntime = pytest.importorskip("onnxruntime")
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    named = dict(zip(("frame1", "frame2"), (p.numpy() for p in pictures), strict=True))
    return torch.from_numpy(session.run(["flow"], named)[0])


def check(path: Path, model: Network, pictures: tuple[Tensor, Tensor], updates: int | None = None) -> None:
    with torch.no_grad():
        expected = model(*pictures, updates)
        assert 0.1 < expected.std() < 100
        torch.testing.assert_close(run(path, pictures), expected, rtol=0, atol=1e-4)


def plainly_encoded(config: RAFTConfig | SEARAFTConfig, *encoders: str) -> Network:
    """A network with one convolution in place of these encoders, whose operators take most of the exporter's time."""
    model = network(config)
    for name in encoders:
        convolution = torch.nn.Conv2d(3, getattr(model, name).conv2.out_channels, STRIDE, STRIDE)
        setattr(model, name, torch.nn.Sequential(OrderedDict(conv1=convolution)))
    return model


@pytest.mark.parametrize("lookup", FORMS)
@pytest.mark.parametrize("config", [SEA_RAFT, SMALL, LARGE], ids=["sea-raft", "raft-small", "raft"])
def test_export_sections_equal_network(config: Any, lookup: str) -> None:
    """Called one after the other, without an exporter; frames of 65×86 are padded, those of 64×80 are not."""
    model = network(config)
    begin, step = export._EncodingSection(model, lookup), export._UpdateSection(model, lookup)
    for size in ((65, 86), (64, 80)):
        pictures = frames(*size, batch=2)
        with torch.no_grad():
            net, coords, context, *state = begin(*pictures)
            for _ in range(2):
                net, coords = step(net, coords, context, state)
            flow = export._UpsamplingSection(model, size if size == (65, 86) else None)(net, coords)
            torch.testing.assert_close(flow, model(*pictures, 2), rtol=0, atol=1e-4)


# Most of the time goes into PyTorch's exporter, so graphs are small: two levels, and one network in the usual checks.
# Symbolic sizes of both lookups: tests/ops/correlation/test_traceable.py.
def test_export_onnx_writes_one_file_with_loop(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    model = plainly_encoded(SMALL.replace(levels=2, radius=1), "fnet", "cnet")
    path = export_onnx(model, tmp_path / "flow.onnx", 62, 80)
    assert [p.name for p in tmp_path.iterdir()] == ["flow.onnx"]
    check(path, model, frames(62, 80))
    stored = onnx.load(path)
    assert [(o.domain, o.version) for o in stored.opset_import] == [("", 18)]
    nodes = [*stored.graph.node]
    loops = [n for n in nodes if n.op_type == "Loop"]
    assert len(loops) == 1
    body = loops[0].attribute[0].g
    assert {n.domain for n in [*nodes, *body.node]} == {""}
    # TensorRT knows no condition inside that the Loop was not given.
    assert loops[0].input[1] == ""
    assert not [n for n in body.node if body.input[1].name in n.input]
    updates = next(i for i in stored.graph.initializer if i.name == "updates")
    updates.CopyFrom(onnx.helper.make_tensor("updates", onnx.TensorProto.INT64, [], [7]))
    onnx.save(stored, path)
    check(path, model, frames(62, 80), 7)


@pytest.mark.long
@pytest.mark.parametrize(
    ("config", "lookup", "encoders"),
    [
        pytest.param(LARGE.replace(levels=2, radius=1), "linear", ("cnet",), id="raft-linear"),
        pytest.param(SMALL.replace(levels=2, radius=1), "linear", ("fnet", "cnet"), id="raft-small-linear"),
        pytest.param(SMALL.replace(levels=2, radius=1), "dense", ("fnet", "cnet"), id="raft-small-dense"),
    ],
)
def test_export_onnx_dynamic_accepts_any_size(
    config: Any, lookup: str, encoders: tuple[str, ...], tmp_path: Path
) -> None:
    pytest.importorskip("onnxscript")
    model = plainly_encoded(config, *encoders)
    path = export_onnx(model, tmp_path / "flow.onnx", 64, 80, lookup=lookup, dynamic=True, updates=2)
    for size in ((64, 80), (96, 56), (32, 32), (40, 200)):
        check(path, model, frames(*size), updates=2)


@pytest.mark.long
def test_export_onnx_static_equals_network(tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    model = network(SEA_RAFT.replace(levels=2, radius=2))
    path = export_onnx(model, tmp_path / "flow.onnx", 65, 86, batch=2, lookup="linear")
    check(path, model, frames(65, 86, batch=2))


@pytest.mark.parametrize("dynamic", [False, True])
def test_export_onnx_stores_frame_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dynamic: bool) -> None:
    onnx = pytest.importorskip("onnx")
    pytest.importorskip("onnxscript")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    values = [helper.make_tensor_value_info(name, kind, None) for name in ("frame1", "frame2", "flow")]
    node = helper.make_node("Add", ["frame1", "frame2"], ["flow"])
    counts: list[int] = []

    def assembled(_: object, count: int) -> Any:
        counts.append(count)
        return helper.make_model(helper.make_graph([node], "quick", values[:2], values[2:]))

    requests: list[tuple[object, ...]] = []
    monkeypatch.setattr(export, "_export_sections", lambda _model, _frames, *how: requests.append(how))
    monkeypatch.setattr(export, "_join_sections", assembled)
    path = export_onnx(network(SMALL), tmp_path / "flow.onnx", 128, 136, batch=2, dynamic=dynamic)
    graph = onnx.load(path).graph
    sizes = [[d.dim_value or d.dim_param for d in v.type.tensor_type.shape.dim] for v in (*graph.input, *graph.output)]
    size = ["height", "width"] if dynamic else [128, 136]
    assert sizes == [[2, 3, *size], [2, 3, *size], [2, 2, *size]]
    export_onnx(network(SMALL), path, 128, 136, updates=5)
    assert counts == [SMALL.updates, 5]
    assert requests == [("linear", dynamic), ("linear", False)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"model": torch.nn.Conv2d(1, 1, 1)},
            "model: expected a RAFT or SEARAFT of fullfield.models, got torch.*Conv2d; its",
        ),
        ({"model": network(SEA_RAFT).train()}, "model: expected a network in eval mode"),
        ({"model": network(SEA_RAFT).half()}, "model: expected float32 parameters, got float16"),
        ({"height": 0}, "height: expected an integer >= 1"),
        ({"width": 64.5}, "width: expected an integer"),
        ({"batch": 0}, "batch: expected an integer >= 1"),
        ({"updates": -1}, "updates: expected an integer >= 0"),
        ({"model": network(SMALL), "updates": 0}, "updates: expected an integer >= 1"),
        ({"lookup": "fast"}, "lookup: expected one of linear, dense"),
        ({"dynamic": True, "height": 130}, "height: expected a multiple of 8 and 128 at least where sizes are dynamic"),
        ({"dynamic": True, "width": 120}, "width: expected a multiple of 8 and 128 at least"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_export_onnx_refuses_bad_arguments(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxscript")
    arguments = {"model": network(SEA_RAFT), "path": tmp_path / "x.onnx", "height": 128, "width": 128, **changes}
    refuses(message, export_onnx, **arguments)
    assert not [*tmp_path.iterdir()]


def test_export_onnx_names_missing_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = network(SEA_RAFT)
    with pytest.raises(OSError, match=r"absent.*x\.onnx|does not exist"):
        export_onnx(model, tmp_path / "absent" / "x.onnx", 64, 64)
    monkeypatch.setattr(export, "find_spec", lambda name: None if name == "onnxscript" else object())
    with pytest.raises(InputError, match=r"export: onnxscript is not installed \(pip install .*\[export\]'\)"):
        export_onnx(model, tmp_path / "x.onnx", 64, 64)
    monkeypatch.setattr(export, "find_spec", lambda _: None)
    refuses("export: onnx and onnxscript are not installed", export_onnx, model, tmp_path / "x.onnx", 64, 64)
