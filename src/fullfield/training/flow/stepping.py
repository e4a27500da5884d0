"""Step of training that never synchronises with the host, and the moving average of the weights."""

from __future__ import annotations

import copy
import inspect
import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fullfield import _check
from fullfield._check import InputError
from fullfield._kernels.cache_folder import log_warning_or_print_unless_quiet
from fullfield.models.cascade import resample_frame
from fullfield.ops import _launching
from fullfield.training.checkpoint import DivergedError, list_non_finite_tensor_names
from fullfield.training.flow.batch import FlowBatch
from fullfield.training.flow.config import COARSE_UPDATES, FlowTraining
from fullfield.training.flow.loss import (
    laplace_mixture_loss,
    loss_mask,
    mean_end_point_error,
    mixture_loss_and_error_before_upsampling,
    sequence_loss,
)
from fullfield.training.flow.ranks import Ranks

_FIRST_SCALE, _MAX_SCALE = 2.0**14, 2.0**24
_UNRECORDED = 4  # steps before a graph is recorded: they compile and choose algorithms
_GROWTH = 1000  # finite steps after which float16's scale doubles
_DTYPES = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_training_precision(device: torch.device) -> str:
    """Return the precision of training where none is given: the fastest whose products the device computes."""
    if device.type != "cuda":
        return "float32"
    return "bfloat16" if _launching.explain_missing_bfloat16(device) is None else "float16"


class AveragedWeights:
    """Copy of a network with the exponential moving average of its weights.

    Floating buffers, such as a batch norm's statistics, are averaged as well; others are copied, and so is what holds
    infinity from the start, such as a mask. All of it takes a few kernels a step. The copy ``model`` is in evaluation
    mode. A step keeps the fraction ``keep`` of the average; less during the first steps, (1 + n) / (10 + n) of step n.
    """

    def __init__(self, model: nn.Module, keep: float = 0.999) -> None:
        _check.check_number(keep, "keep", low=0.0, below=1.0)
        self.keep = keep
        self.model = copy.deepcopy(model).eval().requires_grad_(False)
        both = zip(_list_parameters_and_buffers(self.model), _list_parameters_and_buffers(model), strict=True)
        pairs = [(own, its) for own, its in both if own.numel() and own.data_ptr() != its.data_ptr()]
        unbounded = list_non_finite_tensor_names({str(number): own for number, (own, _) in enumerate(pairs)})
        self._own, self._its, self._own_other, self._its_other = (list[Tensor]() for _ in range(4))
        for number, (own, its) in enumerate(pairs):
            averaged = own.is_floating_point() and str(number) not in unbounded
            (self._own if averaged else self._own_other).append(own)
            (self._its if averaged else self._its_other).append(its)

    @torch.no_grad()
    def update_average(self, step: int) -> None:
        """Follow the network after ``step`` steps."""
        keep = min(self.keep, (1 + step) / (10 + step))
        if self._own:
            torch._foreach_lerp_(self._own, self._its, 1 - keep)
        if self._own_other:
            torch._foreach_copy_(self._own_other, self._its_other)


def _list_parameters_and_buffers(model: nn.Module) -> list[torch.Tensor]:
    return [tensor.detach() for tensor in (*model.parameters(), *model.buffers())]


class TrainingObjective(nn.Module):
    """Network and its loss as one module, which is compiled as a whole.

    The network has ``predictions(frame1, frame2)``, the flow [B, 2, H, W] after each update; for the loss ``"mixture"``
    ``predictions_with_mixture``. ``updates`` is the number of updates of the next call; None leaves it to the network.
    ``coarse_divisor`` is that of the next call (:meth:`FlowTraining.get_coarse_divisor`).
    """

    def __init__(self, network: nn.Module, training: FlowTraining) -> None:
        super().__init__()
        self.network = network
        with_info = callable(getattr(network, "predictions_with_mixture", None))
        plain = callable(getattr(network, "predictions", None))
        named = type(network).__name__
        mixture = training.loss == "mixture" or (training.loss == "auto" and with_info)
        if training.loss == "mixture":
            _check.require(with_info, "loss", "sequence: mixture needs a network with predictions_with_mixture", named)
        if not mixture:
            _check.require(plain, "model", "a network with predictions(frame1, frame2)", named)
        # An attribute, not an argument: torch.compile takes numbers of a module as constants.
        self.updates = training.get_or_draw_update_count(0)
        if self.updates is not None:
            called: Any = network.predictions if plain else network.predictions_with_mixture
            taken = inspect.signature(called).parameters
            any_name = any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in taken.values())
            _check.require("updates" in taken or any_name, "updates", "None for a network without them", named)
        self.coarse_divisor = training.get_coarse_divisor(0)
        self._coarse_stride = training.coarse_starts
        if self.coarse_divisor is not None:
            can_start = mixture and self._returns_fields
            _check.require(can_start, "coarse_starts", "0 without SEA-RAFT and the mixture loss", named)
        self._gamma = training.gamma
        self._limits: tuple[float, float] | None = None
        if mixture:
            config = getattr(network, "config", None)
            highest = getattr(config, "log_scale_max", 10.0)
            lower = getattr(config, "loss_log_scale_max", None)
            self._limits = getattr(config, "log_scale_min", 0.0), highest if lower is None else lower

    @property
    def can_compile_stages(self) -> bool:
        """Return whether the network can compile parts of its predictions, which serve any number of updates."""
        return (
            self._limits is not None
            and self._returns_fields
            and callable(getattr(self.network, "compile_or_restore_stages", None))
        )

    @property
    def _returns_fields(self) -> bool:
        """Return whether the network returns its predictions before they are up-sampled."""
        return callable(getattr(self.network, "compute_padding_coarse_fields_and_weights", None))

    @property
    def loss_name(self) -> str:
        """Return the name of the loss."""
        return "sequence" if self._limits is None else "mixture"

    @torch.no_grad()
    def estimate_coarse_flow_if_any(self, frame1: Tensor, frame2: Tensor) -> Tensor | None:
        """Estimate the flow that starts every N-th pair, at the reduced size, without gradients or new statistics."""
        if self.coarse_divisor is None:
            return None
        height, width = (side // self.coarse_divisor for side in frame1.shape[-2:])
        frames = (resample_frame(frame[:: self._coarse_stride], (height, width)) for frame in (frame1, frame2))
        trained = [module for module in self.network.modules() if module.training]
        self.network.eval()
        try:
            flow: Tensor = self.network(*frames, updates=COARSE_UPDATES)
        finally:
            for module in trained:
                module.training = True
        return flow

    def forward(
        self, frame1: Tensor, frame2: Tensor, flow: Tensor, valid: Tensor, coarse_flow: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the loss, and the mean end-point error of the last prediction.

        ``coarse_flow`` is what :meth:`estimate_coarse_flow_if_any` returned.
        """
        network: Any = self.network
        updates: dict[str, Any] = {} if self.updates is None else {"updates": self.updates}
        if self._limits is None:
            predictions = network.predictions(frame1, frame2, **updates)
            loss = sequence_loss(predictions, flow, valid, gamma=self._gamma)
            last = predictions[-1]
        elif self._returns_fields:
            if coarse_flow is not None:
                updates.update(initial_flow=coarse_flow, stride=self._coarse_stride)
            padding, coarse = network.compute_padding_coarse_fields_and_weights(frame1, frame2, **updates)
            return mixture_loss_and_error_before_upsampling(
                coarse, padding, flow, valid, gamma=self._gamma, limits=self._limits
            )
        else:
            pairs = network.predictions_with_mixture(frame1, frame2, **updates)
            low, high = self._limits
            loss = laplace_mixture_loss(pairs, flow, valid, gamma=self._gamma, log_scale_min=low, log_scale_max=high)
            last = pairs[-1][0]
        return loss, mean_end_point_error(last.detach(), flow, valid)


class StepMeans(NamedTuple):
    """Means over the steps since the last reading."""

    steps: int
    loss: float  # mean over the steps that were not skipped; NaN where all were
    error: float  # mean end-point error in training, pixels
    norm: float  # mean length of the gradient, before it is clipped
    skipped: int  # steps whose loss or gradient was not finite
    consecutive_skipped: int  # the most such steps one after the other


class TrainingStepper:
    """Training step: forward, backward, clipping, optimizer, moving average.

    A step whose loss or gradient is not finite changes neither weights, nor moments, nor a batch norm's statistics.
    That is decided on the device: :meth:`train_on_batch` never waits for it, :meth:`wait_read_and_reset_means` does.
    ``model`` is in training mode on its device; ``ranks`` are the processes that share a batch.
    """

    def __init__(self, model: nn.Module, training: FlowTraining, ranks: Ranks | None = None) -> None:
        self.model = model
        self.training = training
        self.ranks = ranks or Ranks()
        names: Callable[[], list[tuple[str, str]]] = getattr(model, "find_cancelled_biases_and_their_norms", list)
        self._normed = names()
        biases = [model.get_parameter(f"{name}.bias") for name, _ in self._normed]
        self._untrained = [bias for bias in biases if bias.requires_grad]
        for bias in self._untrained:  # the sums over all pixels that their zero gradients are would take time
            bias.requires_grad_(False)
        self._parameters = [p for p in model.parameters() if p.requires_grad]
        _check.require(len(self._parameters) > 0, "model", "parameters to train", "none")
        self.device = self._parameters[0].device
        if training.channels_last:
            model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.ranks.broadcast_from_first_inplace([tensor.detach() for tensor in (*model.parameters(), *model.buffers())])
        self.average = AveragedWeights(model, training.average)
        self.fold_biases_into_norms()
        self.optimizer = torch.optim.AdamW(
            self._parameters, lr=training.learning_rate, weight_decay=training.weight_decay, fused=True
        )
        objective = TrainingObjective(model, training)
        self.loss_name = objective.loss_name
        self._uncompiled = objective
        self._objective: Callable[..., tuple[Tensor, Tensor]] = objective
        self._compiled = training.compile is None
        self._compiles_stages = training.compile is not None and objective.can_compile_stages
        self._compiled_children: list[tuple[nn.Module, Any]] = []  # with the implementations of their calls before
        if training.compile is None:
            pass
        elif self._compiles_stages:
            network: Any = model
            network.compile_or_restore_stages(training.compile)
        elif isinstance(training.updates, tuple):  # as one graph, every number of updates would be compiled again
            for module in model.children():
                self._compiled_children.append((module, module._compiled_call_impl))
                module.compile(mode=training.compile)
        else:
            self._objective = torch.compile(objective, mode=training.compile)
        self._recorded: _StepGraphs | None = None
        self._unrecorded = _UNRECORDED if training.graph and self.device.type == "cuda" else math.inf
        self._buffers = [b for b in model.buffers() if b.is_floating_point() and b.numel()]
        # Float16's scale, finite steps since it last changed.
        self.scaling = torch.zeros(2, dtype=torch.float32, device=self.device)
        self.scaling[0] = _FIRST_SCALE if training.precision == "float16" else 1.0
        # Loss, error, norm, skipped, now in a row, most in a row.
        self._totals = torch.zeros(6, dtype=torch.float32, device=self.device)
        self._one = torch.ones((), dtype=torch.float32, device=self.device)
        self._steps = 0

    def fold_biases_into_norms(self) -> None:
        """Move the biases that are not trained into the norms behind them, as after weights are loaded."""
        for network in (self.model, self.average.model) if self._normed else ():
            network.fold_biases_into_norms(self._normed)  # type: ignore[operator]

    def unfreeze_biases_and_uncompile(self) -> None:
        """Let all parameters of the model require their gradients again, and use no compiled code."""
        for bias in self._untrained:
            bias.requires_grad_(True)
        if self._compiles_stages:
            network: Any = self.model
            network.compile_or_restore_stages(None)
        for module, implementation in self._compiled_children:
            module._compiled_call_impl = implementation
        self._compiled_children.clear()

    def train_on_batch(
        self, batch: FlowBatch, step_number: int, *, learning_rate: float, include_occluded: bool = True
    ) -> None:
        """Make step ``step_number``, counted over the runs that this one continues from, on this process's pairs."""
        self._uncompiled.updates = self.training.get_or_draw_update_count(step_number)
        self._uncompiled.coarse_divisor = self.training.get_coarse_divisor(step_number)
        valid = loss_mask(batch, max_flow=self.training.max_flow, include_occluded=include_occluded)
        frame1, frame2 = batch.frame1, batch.frame2
        if self.training.channels_last:
            frame1, frame2 = (f.contiguous(memory_format=torch.channels_last) for f in (frame1, frame2))
        before = torch.cat([b.detach().reshape(-1) for b in self._buffers]) if self._buffers else None
        weight = self._one
        if self.ranks.count > 1:  # the mean over all processes' pixels, not over the processes' means
            pixels = valid.sum().clamp(min=1).float()
            weight = self.ranks.count * pixels / self.ranks.sum_tensor_inplace(pixels.clone())
        loss, error = self._set_gradients_and_get_loss_and_error(frame1, frame2, batch.flow, valid, weight)
        for parameter in self._parameters if self.ranks.count > 1 else ():
            if parameter.grad is None:  # this process's pairs did not reach it
                parameter.grad = torch.zeros_like(parameter)
        gradients = [p.grad for p in self._parameters if p.grad is not None]
        self.ranks.average_tensors_inplace([*gradients, loss, error])
        norm = torch.nn.utils.get_total_norm(gradients) / self.scaling[0]
        is_bad = ~(norm.isfinite() & loss.isfinite())
        self._clip_and_update_weights_unless(is_bad, norm, learning_rate)
        if before is not None:
            self._restore_buffers_if(is_bad, before)
        self.average.update_average(step_number)
        if self.training.precision == "float16":
            self._update_loss_scale(is_bad)
        self._add_to_totals_and_count_skipped(loss, error, norm, is_bad)

    def _set_gradients_and_get_loss_and_error(self, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Set the parameters' gradients, return loss and error; by a CUDA graph after the first steps."""
        if self._unrecorded > 0:
            self._unrecorded -= 1
            self.optimizer.zero_grad(set_to_none=True)
            return self._run_forward_and_backward(*inputs)
        if self._recorded is None:
            self.optimizer.zero_grad(set_to_none=True)  # frees their memory before that of the graphs is taken
            self._recorded = _StepGraphs(self._run_forward_and_backward, self._parameters, inputs)
        return self._recorded((self._uncompiled.updates, self._uncompiled.coarse_divisor), inputs)

    def _run_forward_and_backward(
        self, frame1: Tensor, frame2: Tensor, flow: Tensor, valid: Tensor, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        dtype = _DTYPES.get(self.training.precision)
        autocast = torch.autocast(self.device.type, dtype=dtype, enabled=dtype is not None)
        with autocast:  # of its own: it keeps rounded weights, and those made here have no gradients
            coarse_flow = self._uncompiled.estimate_coarse_flow_if_any(frame1, frame2)
        with self._announce_compilation_time_once():
            with autocast:
                loss, error = self._objective(frame1, frame2, flow, valid, coarse_flow)
            loss = loss.float() * weight
            (loss * self.scaling[0]).backward()  # type: ignore[no-untyped-call]
        return loss.detach(), error.float().detach() * weight

    @contextmanager
    def _announce_compilation_time_once(self) -> Iterator[None]:
        """Announce on stderr that the first step compiles, and how long it took."""
        if self._compiled or not self.ranks.is_first:
            yield
            return
        self._compiled = True
        mode = self.training.compile
        log_warning_or_print_unless_quiet(
            f"compiling the network (torch.compile, {mode}); this may take a minute, or longer ..."
        )
        start = time.perf_counter()
        yield
        log_warning_or_print_unless_quiet(f"compiled in {time.perf_counter() - start:.1f} s")

    @torch.no_grad()
    def _clip_and_update_weights_unless(self, is_bad: Tensor, norm: Tensor, learning_rate: float) -> None:
        # The fused optimizer divides by the one and does nothing, moments included, where the other is 1.
        optimizer: Any = self.optimizer
        optimizer.grad_scale = self.scaling[0] * (norm / self.training.clip).clamp(min=1.0)
        optimizer.found_inf = is_bad.float()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate
        optimizer.step()

    @torch.no_grad()
    def _restore_buffers_if(self, is_bad: Tensor, before: Tensor) -> None:
        after = torch.cat([b.reshape(-1) for b in self._buffers])
        pieces = torch.split(torch.where(is_bad, before, after), [b.numel() for b in self._buffers])
        torch._foreach_copy_(self._buffers, [p.view_as(b) for p, b in zip(pieces, self._buffers, strict=True)])

    @torch.no_grad()
    def _update_loss_scale(self, is_bad: Tensor) -> None:
        """Halve float16's scale after a step that is not finite; double it after many that are."""
        scale = self.scaling[0]
        finite_steps = torch.where(is_bad, 0.0, self.scaling[1] + 1)
        grown = torch.where(finite_steps >= _GROWTH, 2 * scale, scale).clamp(max=_MAX_SCALE)
        self.scaling.copy_(torch.stack([torch.where(is_bad, scale / 2, grown), finite_steps % _GROWTH]))

    @torch.no_grad()
    def _add_to_totals_and_count_skipped(self, loss: Tensor, error: Tensor, norm: Tensor, is_bad: Tensor) -> None:
        row = (self._totals[4] + 1) * is_bad
        sums = torch.where(is_bad, 0.0, torch.stack([loss, error, norm]))
        counts = torch.stack([is_bad.float(), row, row])
        counts[0] += self._totals[3]
        counts[2] = torch.maximum(row, self._totals[5])
        self._totals = torch.cat([self._totals[:3] + sums, counts])
        self._steps += 1

    def wait_read_and_reset_means(self) -> StepMeans:
        """Return the means over the steps since the last reading; waits for the device."""
        loss, error, norm, skipped, _, worst = self._totals.tolist()
        steps, good = self._steps, self._steps - int(skipped)
        self._totals[:4].zero_()
        self._totals[5] = 0
        self._steps = 0
        loss, error, norm = (value / good if good else float("nan") for value in (loss, error, norm))
        return StepMeans(steps, loss, error, norm, int(skipped), int(worst))


class _RecordedStep(NamedTuple):
    """CUDA graph of a step, and the tensors that it writes."""

    graph: torch.cuda.CUDAGraph
    loss: Tensor
    error: Tensor
    gradients: list[Tensor | None]


class _StepGraphs:
    """CUDA graphs of a step on batches of one shape: a call costs the host one launch.

    Each number of updates and each size of coarse frames has a graph. All of them share their inputs and their memory:
    one runs at a time, and its results are used or copied before the next one starts.
    """

    def __init__(
        self,
        compute_step: Callable[..., tuple[Tensor, Tensor]],
        parameters: Sequence[nn.Parameter],
        inputs: Sequence[Tensor],
    ) -> None:
        self._work, self._parameters = compute_step, list(parameters)
        self._inputs = [torch.empty_like(tensor) for tensor in inputs]
        self._memory = torch.cuda.graph_pool_handle()
        self._recordings: dict[tuple[int | None, int | None], _RecordedStep] = {}

    def __call__(
        self, updates_and_divisor: tuple[int | None, int | None], inputs: Sequence[Tensor]
    ) -> tuple[Tensor, Tensor]:
        """Run the step with these numbers of the objective and set the parameters' gradients; return loss and error."""
        for own, value in zip(self._inputs, inputs, strict=True):
            if own.shape != value.shape:
                shapes = tuple(own.shape), tuple(value.shape)
                raise InputError(f"graph: expected batches of one shape, got {shapes[1]} after {shapes[0]}")
        torch._foreach_copy_(self._inputs, list(inputs), non_blocking=True)
        recording = self._recordings.get(updates_and_divisor)
        if recording is None:
            recording = self._recordings[updates_and_divisor] = self._clear_gradients_and_record_step()
        for parameter, gradient in zip(self._parameters, recording.gradients, strict=True):
            parameter.grad = gradient
        recording.graph.replay()
        return recording.loss.clone(), recording.error.clone()

    def _clear_gradients_and_record_step(self) -> _RecordedStep:
        for parameter in self._parameters:
            parameter.grad = None
        graph = torch.cuda.CUDAGraph()
        try:
            # Other threads may allocate meanwhile: those that read batches ahead.
            with torch.cuda.graph(graph, pool=self._memory, capture_error_mode="thread_local"):
                loss, error = self._work(*self._inputs)
        except RuntimeError as error_:
            reason = str(error_).split("\n", 1)[0]
            raise InputError(f"graph: expected a network whose step can be recorded, got: {reason}") from error_
        return _RecordedStep(graph, loss, error, [parameter.grad for parameter in self._parameters])


def raise_if_diverged(reading: StepMeans, step: int, training: FlowTraining, min_consecutive_skipped: int = 20) -> None:
    """Raise DivergedError if at least ``min_consecutive_skipped`` steps in a row, until ``step``, were not finite."""
    if reading.consecutive_skipped >= min_consecutive_skipped:
        raise build_divergence_error(f"{reading.consecutive_skipped} steps in a row", step, training)


def build_divergence_error(which_steps: str, step: int, training: FlowTraining) -> DivergedError:
    """Return the error of a training whose ``which_steps`` until ``step`` were not finite."""
    return DivergedError(
        f"learning_rate: loss or gradient was not finite in {which_steps} until step {step}; take less than "
        f"{training.learning_rate:g}, or see whether the network gives NaN for its first pairs"
    )
