"""Training step of a residual network on points, recorded once and replayed for batches of other sizes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.models.pointcnnpp.config import Step
from fullfield.models.pointcnnpp.networks import PointPyramid, PointResNet, check_features_fit_pyramid
from fullfield.ops.point_conv import PointGeometry
from fullfield.ops.point_conv.triplets import Triplets


class RecordedStep:
    """Training step of a :class:`PointResNet`: the loss and the gradients of all parameters.

    On a GPU, forward, loss and backward are recorded as one CUDA graph, with memory for more points and triplets than
    the example batch has. Each call copies a batch and its geometry there and replays the graph, so that the host does
    not have to issue the step's kernels. A batch that does not fit runs as a plain step, with the same results: one
    with too many points or triplets, another number of clouds, or other dtypes or shapes of targets. Without a GPU,
    every step is a plain one.

    Gradients replace those of the step before; they are not added. Python numbers that the loss reads are fixed by the
    recording: pass values that change, such as a loss scale, as targets. Hooks of modules do not run in a replay.

    Args:
        network: a network with layer norms; other norms would count memory that holds no points.
        loss: returns a scalar from the logits [B, classes] and the targets, without waiting for the device.
        features: features of the example batch, as in a call.
        pyramid: pyramid of the example batch.
        targets: targets of the example batch.
        spare: additional memory, as a share of the example's points and triplets.

    Raises:
        InputError: if an argument does not fit, or the loss cannot be recorded.
    """

    def __init__(
        self,
        network: PointResNet,
        loss: Callable[..., Tensor],
        features: Tensor,
        pyramid: PointPyramid,
        *targets: Tensor,
        spare: float = 0.25,
    ) -> None:
        _check.require(type(network) is PointResNet, "network", "a PointResNet", network)
        norm = network.config.norm
        _check.require(norm == "layer", "network", "one whose config.norm is 'layer'", repr(norm))
        _check.require(callable(loss), "loss", "a function of the logits and the targets", loss)
        _check.check_number(spare, "spare", low=0.0, high=16.0)
        self.network, self.loss = network, loss
        self.replays = 0
        """Number of steps that replayed the graph."""
        self.plain_steps = 0
        """Number of steps that ran without the graph."""
        self._check(features, pyramid)
        self._parameters = [p for p in network.parameters() if p.requires_grad]
        self._parameter_names = [
            (m._parameters, name) for m in network.modules() for name, p in m._parameters.items() if p is not None
        ]
        self._recorded = self._state()
        self._mode = _mode()
        self._memory: _Memory | None = None
        if features.is_cuda:
            with torch.cuda.device(features.device):
                self._memory = _Memory(network.config.list_geometry_steps(), features, pyramid, targets, spare)
                self._memory.load(features, pyramid, targets)
                self._record()

    def __call__(self, features: Tensor, pyramid: PointPyramid, *targets: Tensor) -> Tensor:
        """Compute the loss, and set ``grad`` of every parameter that requires a gradient.

        Args:
            features: [N, in_channels], without a gradient of their own.
            pyramid: pyramid that ``network.prepare`` returned for these points.
            targets: tensors that the loss receives after the logits, on the features' device; others are copied there.

        Raises:
            InputError: if the features do not fit, the pyramid was prepared without gradients, or parameters were
                moved, replaced or frozen after the recording.
        """
        self._check(features, pyramid)
        targets = tuple(target.to(features.device, non_blocking=True) for target in targets)
        memory = self._memory
        if self._state() != self._recorded:
            raise InputError("network: expected the parameters of the recording, got others; make a new RecordedStep")
        if memory is not None and self._mode == _mode() and memory.is_compatible(features, pyramid, targets):
            with torch.cuda.device(features.device):
                memory.load(features, pyramid, targets)
                loss, gradients = self._replay()
            self.replays += 1
        else:
            loss, gradients = self._gradients(self.network(features, pyramid), targets)
            self.plain_steps += 1
        for parameter, gradient in zip(self._parameters, gradients, strict=True):
            parameter.grad = gradient
        return loss

    def _check(self, features: Tensor, pyramid: PointPyramid) -> None:
        steps = self.network.config.list_geometry_steps()
        check_features_fit_pyramid(features, pyramid, self.network.config.in_channels, steps)
        _check.require(not features.requires_grad, "features", "a tensor that does not require a gradient", features)
        for step in steps:
            if step[0] > 0:
                pyramid.geometries[step].raise_unless_gradient_is_prepared()

    def _state(self) -> list[tuple[int, bool]]:
        """Return the addresses of the parameters, which are part of the graph, and which ones get gradients."""
        now = [own.get(name) for own, name in self._parameter_names]  # in a tenth of the time of network.parameters()
        return [(p.data_ptr(), p.requires_grad) for p in now if p is not None]

    def _gradients(self, logits: Tensor, targets: Sequence[Tensor]) -> tuple[Tensor, Sequence[Tensor]]:
        loss = self.loss(logits, *targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            _check.require(False, "loss", "a function that returns a scalar", loss)
        return loss.detach(), torch.autograd.grad(loss.view(()), self._parameters)

    def _padded_step(self) -> tuple[Tensor, Sequence[Tensor]]:
        """Compute the loss and the gradients of the batch in memory."""
        assert self._memory is not None
        last = self.network.compute_stage_features(self._memory.features, self._memory.pyramid)[-1]
        means = _means(last, self._memory.sizes)
        return self._gradients(self.network.classifier(means), self._memory.targets)

    def _record(self) -> None:
        stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        self._graph = torch.cuda.CUDAGraph()
        stream.wait_stream(torch.cuda.current_stream())
        autocast, dtype, _ = self._mode
        # Weights that autocast has cast before the recording would not be cast again by the graph.
        with torch.autocast("cuda", dtype=dtype, enabled=autocast, cache_enabled=False):
            with torch.cuda.stream(stream):
                self._padded_step()  # compiles kernels and chooses algorithms
                with _refusing_to_wait():
                    self._padded_step()
            torch.cuda.current_stream().wait_stream(stream)
            with (
                torch.cuda.graph(self._graph, stream=stream, capture_error_mode="thread_local"),
                torch.autograd.set_multithreading_enabled(False),
            ):
                self._results = self._padded_step()

    def _replay(self) -> tuple[Tensor, Sequence[Tensor]]:
        self._graph.replay()
        loss, gradients = self._results
        return loss.clone(), gradients


def _mode() -> tuple[bool, torch.dtype, str]:
    """Return the global settings that a recording depends on."""
    autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
    return *autocast, torch.get_float32_matmul_precision()


@contextmanager
def _refusing_to_wait() -> Iterator[None]:
    """Inside, work that waits for the device is an error, found before a recording that it would break."""
    before = torch.cuda.get_sync_debug_mode()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype", UserWarning)
        torch.cuda.set_sync_debug_mode("error")
        try:
            yield
        except RuntimeError as error:
            reason = str(error).split("\n", 1)[0]
            raise InputError(f"loss: expected a function that does not wait for the device, got: {reason}") from error
        finally:
            torch.cuda.set_sync_debug_mode(before)


def _means(
    features: Tensor,  # [N, C]
    sizes: Tensor,  # [B] int64, on the features' device
) -> Tensor:  # [B, C]
    """Return the mean over each cloud, 0 for an empty one, without waiting for the device.

    Rows after the last cloud belong to none; they must be finite.
    """
    exact = torch.float64 if features.dtype == torch.float64 else torch.float32
    row = torch.arange(features.shape[0], device=features.device)
    ends, counts = sizes.cumsum(0)[:, None], sizes[:, None]
    inside = (row < ends) & (row >= ends - counts)
    with torch.autocast(features.device.type, enabled=False):
        sums = inside.to(exact) @ features.to(exact)
    return (sums / counts.clamp(min=1)).to(features.dtype)


def _triplets(pyramid: PointPyramid, steps: Sequence[Step]) -> list[Triplets]:
    """Return the triplets that the network reads, of both directions."""
    pairings = []
    for step in steps:
        geometry = pyramid.geometries[step]
        pairings.append(geometry.forward)
        if step[0] > 0 and geometry.backward is not None:  # the network's input has no gradient
            pairings.append(geometry.backward)
    return pairings


class _Memory:
    """Batch in memory of fixed size, which the graph reads.

    Points after the batch's own are centres without triplets, and no triplet names them. So they reach neither the loss
    nor a gradient, and indices that an earlier batch left there do no harm.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        features: Tensor,
        pyramid: PointPyramid,
        targets: Sequence[Tensor],
        spare: float,
    ) -> None:
        device = features.device

        def larger(count: int) -> int:
            return int((1.0 + spare) * count)

        def reserve(triplets: Triplets, rows: int) -> Triplets:
            entries, cells = (t.new_zeros(larger(t.numel())) for t in triplets[1:])
            return Triplets(triplets.rows.new_zeros(rows + 1), entries, cells)

        def geometry(step: Step) -> PointGeometry:
            given, (source, target, _) = pyramid.geometries[step], step
            backward = None if source == 0 or given.backward is None else reserve(given.backward, counts[source])
            return replace(
                given, forward=reserve(given.forward, counts[target]), backward=backward, points=counts[source]
            )

        counts = [larger(points.shape[0]) for points in pyramid.points]
        # Numbers that differ: the sums of a gradient over kept points would wait for each other at one address.
        retained = tuple(torch.arange(count, device=device) for count in counts[1:])
        nowhere = torch.zeros(1, 3, device=device)
        self._steps = steps
        self.features = features.new_zeros(counts[0], features.shape[1])
        self.targets = [torch.empty_like(target, device=device) for target in targets]
        self.sizes = torch.zeros(len(pyramid.sizes[-1]), dtype=torch.int64, device=device)
        self.pyramid = PointPyramid(
            tuple(nowhere.expand(count, 3) for count in counts),
            retained,
            tuple((count,) for count in counts),
            {step: geometry(step) for step in steps},
        )
        self._triplets = _triplets(self.pyramid, steps)
        self._arrays = self._list_arrays(self.features, self.pyramid, self._triplets)
        self._sizes = [array.shape[0] for array in self._arrays]

    @staticmethod
    def _list_arrays(features: Tensor, pyramid: PointPyramid, triplets: Sequence[Triplets]) -> list[Tensor]:
        """Return everything whose length depends on the number of points."""
        return [features, *pyramid.kept_indices, *(array for one in triplets for array in one)]

    def is_compatible(self, features: Tensor, pyramid: PointPyramid, targets: Sequence[Tensor]) -> bool:
        """Return whether a batch can be loaded."""
        arrays = self._list_arrays(features, pyramid, _triplets(pyramid, self._steps))
        sizes = [array.shape[0] for array in arrays]
        return (
            features.dtype == self.features.dtype
            and features.device == self.features.device
            and len(pyramid.sizes[-1]) == self.sizes.shape[0]
            and [(t.shape, t.dtype) for t in targets] == [(t.shape, t.dtype) for t in self.targets]
            and all(given <= own and bool(given) == bool(own) for given, own in zip(sizes, self._sizes, strict=True))
        )

    def load(self, features: Tensor, pyramid: PointPyramid, targets: Sequence[Tensor]) -> None:
        """Copy a batch that fits; never waits for the device."""
        triplets = _triplets(pyramid, self._steps)
        arrays = self._list_arrays(features, pyramid, triplets)
        by_dtype: dict[torch.dtype, tuple[list[Tensor], list[Tensor]]] = {}
        for own, given in zip(self._arrays, arrays, strict=True):
            if given.shape[0]:
                some = by_dtype.setdefault(given.dtype, ([], []))
                some[0].append(own.narrow(0, 0, given.shape[0]))
                some[1].append(given)
        for several in by_dtype.values():  # a launch or two for each dtype
            torch._foreach_copy_(*several)
        for own_rows, one in zip(self._triplets, triplets, strict=True):
            own_rows.rows[one.rows.shape[0] :] = one.entries.shape[0]  # rows without triplets
        self.features[features.shape[0] :].zero_()  # float32 operands are scaled by the largest feature of all
        for own_target, target in zip(self.targets, targets, strict=True):
            own_target.copy_(target, non_blocking=True)
        self.sizes.copy_(torch.tensor(pyramid.sizes[-1]), non_blocking=True)
