"""Export of networks as ONNX files for other runtimes."""

from __future__ import annotations

import logging
import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram

from fullfield import _check
from fullfield._check import InputError, SetupError
from fullfield._install import build_install_command
from fullfield.models.framing import STRIDE, choose_padding, create_coordinate_grid_like
from fullfield.models.network import FlowNetwork
from fullfield.ops.correlation.traceable import FORMS, build_traceable_state, compute_traceable_lookup

if TYPE_CHECKING:
    import onnx

OPSET = 18
# Values that an update passes to the next; names of edges in the ONNX graph.
_LOOP_VALUES = ("net", "coords")


def export_onnx(
    model: FlowNetwork,
    path: str | os.PathLike[str],
    height: int,
    width: int,
    *,
    batch: int = 1,
    updates: int | None = None,
    lookup: str = "linear",
    dynamic: bool = False,
) -> Path:
    """Write a network as one ONNX file: opset 18, standard operators, inputs frame1 and frame2, output flow.

    The updates are one Loop, so the graph does not grow with their number. The file replaces ``path`` when it is
    complete. Needs ``fullfield[export]``.

    Args:
        model: network in eval mode, with float32 parameters; it is not changed. Frames are [B, 3, H, W] float32
            0 … 1.
        path: file to write.
        height: rows of the frames; with ``dynamic``, of those to trace with.
        width: columns of the frames.
        batch: pairs at a time.
        updates: number of updates, by default the configuration's.
        lookup: ``"linear"`` gathers features in every update: (2r + 2)·C floats per cell and level at a time.
            ``"dense"`` keeps the volume of all pairs, quadratic in the number of cells, and gathers from it.
        dynamic: the graph takes any height and width that are multiples of 8 and have two cells on every level:
            128 pixels at least for four levels.

    Raises:
        InputError: naming the argument that does not fit, or the package that is missing.
        OSError: if the file cannot be written.
    """
    require_onnx()
    _check.check_choice(lookup, "lookup", FORMS)
    frames = _check_and_create_example_frames(model, height, width, batch, dynamic)
    count = model.config.updates if updates is None else updates
    _check.check_number(count, "updates", integer=True, low=0 if model.config.has_learned_start else 1)
    target = Path(path)
    if not target.parent.is_dir():
        raise FileNotFoundError(f"{target}: the folder {target.parent} does not exist")

    import onnx

    from fullfield.io.files import write_atomically

    model_proto = _join_sections(_export_sections(model, frames, lookup, dynamic), count)
    model_proto.doc_string = (
        f"{model.config.name}: RGB frames 0...1, display-referred; flow (u, v) in pixels from frame1"
    )
    size: Sequence[int | str] = ("height", "width") if dynamic else (height, width)
    for value, channels in zip((*model_proto.graph.input, *model_proto.graph.output), (3, 3, 2), strict=True):
        shape = (batch, channels, *size)
        value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, onnx.TensorProto.FLOAT, shape))
    onnx.checker.check_model(model_proto)
    with write_atomically(target) as temporary:
        onnx.save(model_proto, str(temporary), format="protobuf")
    return target


def require_onnx() -> None:
    """Check that the packages that :func:`export_onnx` needs are installed; SetupError names the missing ones."""
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        verb = "is" if len(missing) == 1 else "are"
        raise SetupError(f"export: {' and '.join(missing)} {verb} not installed ({build_install_command('export')})")


class _ExportedSection(nn.Module):
    """Part of an ONNX file: a network, and the form of its lookup."""

    def __init__(self, network: FlowNetwork, lookup_kind: str) -> None:
        super().__init__()
        self.network, self.lookup_kind = network, lookup_kind


class _EncodingSection(_ExportedSection):
    """First part: what is computed once per pair."""

    def forward(self, frame1: Tensor, frame2: Tensor) -> tuple[Tensor, ...]:  # net, coords, context, state
        model: Any = self.network
        padding = choose_padding(frame1.shape[-2], frame1.shape[-1], model.config.padding)
        fmap1, fmap2, net, context = model.encode(
            model.normalize_and_pad_frame(frame1, padding), model.normalize_and_pad_frame(frame2, padding)
        )
        coords = create_coordinate_grid_like(net)
        coords = coords + model.regress_initial_flow(net) if model.config.has_learned_start else coords.clone()
        return net, coords, context, *build_traceable_state(fmap1, fmap2, model.config.levels, self.lookup_kind)


class _UpdateSection(_ExportedSection):
    """Second part: one update."""

    def forward(self, net: Tensor, coords: Tensor, context: Tensor, state: list[Tensor]) -> tuple[Tensor, Tensor]:
        def lookup(lookup_coords: Tensor) -> Tensor:
            return compute_traceable_lookup(state, lookup_coords, self.network.config.radius, self.lookup_kind)

        model: Any = self.network
        after: tuple[Tensor, Tensor] = model.update_hidden_state_and_coords(
            lookup, net, context, coords, create_coordinate_grid_like(net)
        )
        return after


class _UpsamplingSection(nn.Module):
    """Last part: the flow of a frame of ``size``, height and width, or None if nothing was padded."""

    def __init__(self, network: FlowNetwork, size: tuple[int, int] | None) -> None:
        super().__init__()
        self.network, self.size = network, size

    def forward(self, net: Tensor, coords: Tensor) -> Tensor:
        model: Any = self.network
        flow: Tensor = model.upsample(coords - create_coordinate_grid_like(net), model.predict_mask(net))
        return flow if self.size is None else choose_padding(*self.size, model.config.padding).crop(flow)


def _check_and_create_example_frames(
    model: FlowNetwork, height: int, width: int, batch: int, dynamic: bool
) -> tuple[Tensor, Tensor]:
    """Check the arguments and return a pair to trace with."""
    if not isinstance(model, FlowNetwork):
        name = f"{type(model).__module__}.{type(model).__qualname__}"
        raise InputError(
            f"model: expected a RAFT or SEARAFT of fullfield.models, got {name}; its weights may fit one: "
            "RAFT().load_checkpoint(model.state_dict())"
        )
    _check.require(not model.training, "model", "a network in eval mode", "one in training mode")
    dtypes = {str(p.dtype).removeprefix("torch.") for p in model.parameters()}
    _check.require(dtypes == {"float32"}, "model", "float32 parameters", ", ".join(sorted(dtypes)))
    min_side = STRIDE * 2**model.config.levels
    for value, name in ((height, "height"), (width, "width"), (batch, "batch")):
        _check.check_number(value, name, integer=True, low=1)
        if dynamic and name != "batch":
            is_valid = value % STRIDE == 0 and value >= min_side
            _check.require(
                is_valid, name, f"a multiple of {STRIDE} and {min_side} at least where sizes are dynamic", value
            )
    device = next(model.parameters()).device
    first, second = torch.zeros(2, batch, 3, height, width, device=device, dtype=torch.float32)
    return first, second


def _list_dynamic_frame_dimensions(model: FlowNetwork) -> dict[int, Any]:
    rows, columns = _list_dynamic_cell_dimensions(model)
    return {2: STRIDE * rows, 3: STRIDE * columns}


def _list_dynamic_cell_dimensions(model: FlowNetwork) -> tuple[Any, Any]:
    min_side = 2**model.config.levels
    return Dim("rows", min=min_side), Dim("columns", min=min_side)


def _trace_program(module: nn.Module, inputs: tuple[Any, ...], dynamic_shapes: Sequence[Any] | None) -> ExportedProgram:
    with _disable_gradients_and_silence_exporters():
        return torch.export.export(
            module.eval(), inputs, dynamic_shapes=None if dynamic_shapes is None else tuple(dynamic_shapes)
        )


@contextmanager
def _disable_gradients_and_silence_exporters() -> Iterator[None]:
    """Disable gradients, and hide what exporters print about deprecated calls and passes without effect."""
    logger = logging.getLogger("onnx_ir")
    level = logger.level
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            logger.setLevel(level)


def _export_sections(
    model: FlowNetwork, frames: tuple[Tensor, Tensor], lookup_kind: str, dynamic: bool
) -> tuple[onnx.ModelProto, onnx.ModelProto, onnx.ModelProto]:
    """Return first part, update and last part as ONNX models whose inputs and outputs have matching names."""
    first, step = _EncodingSection(model, lookup_kind).eval(), _UpdateSection(model, lookup_kind)
    finish = _UpsamplingSection(model, None if dynamic else (frames[0].shape[-2], frames[0].shape[-1]))
    with torch.no_grad():
        net, coords, context, *state = first(*frames)
    first_sides = step_sides = finish_sides = None
    if dynamic:
        rows, columns = _list_dynamic_cell_dimensions(model)
        image = {2: rows, 3: columns}
        first_sides = [_list_dynamic_frame_dimensions(model)] * 2
        finish_sides = [image, image]
        free = [Dim(f"cells{level}") for level in range(model.config.levels)]
        linear: list[Any] = [{1: rows, 2: columns}, *({0: cells} for cells in free)]
        dense: list[Any] = [{1: rows, 2: columns, 3: cells} for cells in free]
        step_sides = [image, image, image, linear if lookup_kind == "linear" else dense]
    shared = ["context", *(f"state{index}" for index in range(len(state)))]
    return (
        _convert_to_onnx(
            _trace_program(first, frames, first_sides), "begin", ["frame1", "frame2"], [*_LOOP_VALUES, *shared]
        ),
        _convert_to_onnx(
            _trace_program(step, (net, coords, context, state), step_sides),
            "update",
            [*(f"{name}.before" for name in _LOOP_VALUES), *shared],
            [f"{name}.after" for name in _LOOP_VALUES],
        ),
        _convert_to_onnx(
            _trace_program(finish, (net, coords), finish_sides),
            "end",
            [f"{name}.last" for name in _LOOP_VALUES],
            ["flow"],
        ),
    )


def _convert_to_onnx(program: ExportedProgram, prefix: str, inputs: list[str], outputs: list[str]) -> onnx.ModelProto:
    """Convert the program to ONNX; inner names begin with ``prefix``."""
    from onnx import helper
    from onnx.compose import add_prefix

    with _disable_gradients_and_silence_exporters():
        onnx_program = torch.onnx.export(
            program, input_names=inputs, output_names=outputs, opset_version=OPSET, dynamo=True, verbose=False
        )
    if onnx_program is None:
        raise RuntimeError("torch.onnx.export returned nothing")
    named: onnx.ModelProto = add_prefix(
        onnx_program.model_proto, f"{prefix}/", rename_inputs=False, rename_outputs=False
    )
    # Names of symbolic sizes would clash with those of the other parts.
    del named.graph.value_info[:]
    node_outputs = {name for node in named.graph.node for name in node.output}
    constants = [name for name in outputs if name not in node_outputs]
    named.graph.node.extend(helper.make_node("Identity", [f"{prefix}/{name}"], [name]) for name in constants)
    return named


def _join_sections(sections: tuple[onnx.ModelProto, onnx.ModelProto, onnx.ModelProto], updates: int) -> onnx.ModelProto:
    """Join the parts: the update becomes a Loop, which reads the context and the lookup's state from outside."""
    from onnx import TensorProto, helper

    first, update, end = (section.graph for section in sections)
    # A constant instead of the incoming condition, which TensorRT does not support.
    keep = helper.make_node(
        "Constant", [], ["keep.after"], value=helper.make_tensor("keep", TensorProto.BOOL, [], [True])
    )
    body = helper.make_graph(
        [keep, *update.node],
        "update",
        [
            helper.make_tensor_value_info("number", TensorProto.INT64, []),
            helper.make_tensor_value_info("keep.before", TensorProto.BOOL, []),
            *(helper.make_tensor_value_info(f"{name}.before", TensorProto.FLOAT, [None] * 4) for name in _LOOP_VALUES),
        ],
        [
            helper.make_tensor_value_info("keep.after", TensorProto.BOOL, []),
            *(helper.make_tensor_value_info(f"{name}.after", TensorProto.FLOAT, [None] * 4) for name in _LOOP_VALUES),
        ],
    )
    loop = helper.make_node(
        "Loop", ["updates", "", *_LOOP_VALUES], [f"{name}.last" for name in _LOOP_VALUES], body=body
    )
    graph = helper.make_graph(
        [*first.node, loop, *end.node],
        "flow",
        list(first.input),
        list(end.output),
        [
            helper.make_tensor("updates", TensorProto.INT64, [], [updates]),
            *first.initializer,
            *update.initializer,
            *end.initializer,
        ],
    )
    version = helper.make_opsetid("", OPSET)
    return helper.make_model(
        graph, opset_imports=[version], ir_version=sections[0].ir_version, producer_name="fullfield"
    )
