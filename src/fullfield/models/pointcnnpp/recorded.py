"""Training step of a residual network on points, recorded as one CUDA graph for batches of any size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from fullfield import _check
from fullfield._check import InputError
from fullfield.models.pointcnnpp.networks import PointPyramid, PointResNet, check_input
from fullfield.ops.point_conv import Triplets
from fullfield.ops.point_conv.padding import PaddedArrays

_Steps = Sequence[tuple[int, int, int]]


class RecordedStep:
    """Training step of a :class:`PointResNet`: the loss, and the gradients of all parameters.

    On a GPU the step is recorded as a CUDA graph at the first call, and later calls replay it, which takes the host
    little time. A graph has fixed sizes. So the geometry and the features of each batch are copied into memory with
    room to spare, where the absent points have no neighbours and no weight in the mean over a cloud. A batch that does
    not fit is recorded again, with room for the largest of all batches so far. So is a batch with another number of
    clouds, other dtypes or shapes of targets, and one that comes after parameters have moved. Recording takes about as
    long as a few steps without a graph. On other devices every step runs without a graph.

    The gradients replace those of the step before; they are not added to them. They equal the gradients without a graph
    but for the order of their sums. Whatever the loss computes from Python numbers is fixed by the recording: pass what
    changes, such as the scale of a float16 loss, as a target.

    Args:
        network: with layer norms; statistics over points would count the absent ones.
        loss: returns a scalar from the logits [B, classes] and the targets, without waiting for the device.
        spare: room beyond the largest batch so far, as a share of it.

    Raises:
        InputError: if the network has other norms, or an argument does not fit.
    """

    def __init__(self, network: PointResNet, loss: Callable[..., Tensor], *, spare: float = 0.125) -> None:
        _check.require(isinstance(network, PointResNet), "network", "a PointResNet", network)
        norm = network.config.norm
        _check.require(norm == "layer", "network", "one whose config.norm is 'layer'", repr(norm))
        _check.require(callable(loss), "loss", "a function of the logits and the targets", loss)
        _check.number(spare, "spare", low=0.0, high=16.0)
        self.network, self.loss, self.spare = network, loss, spare
        self.recordings = 0
        """Number of graphs that were recorded so far."""
        self._parameters = list(network.parameters())
        self._key: tuple[object, ...] | None = None
        self._largest: list[int] = []
        self._graph: _Graph | None = None

    def __call__(self, features: Tensor, pyramid: PointPyramid, *targets: Tensor) -> Tensor:
        """Compute the loss, and set ``grad`` of every parameter.

        Args:
            features: [N, in_channels], without a gradient of their own.
            pyramid: made by ``network.prepare`` for these points.
            targets: tensors that the loss takes behind the logits.

        Raises:
            InputError: if the features do not fit, the pyramid was prepared without gradients, or the loss cannot be
                recorded.
        """
        check_input(features, pyramid, self.network.config.in_channels, self.network.config.steps())
        _check.require(not features.requires_grad, "features", "a tensor that does not require a gradient", features)
        if not features.is_cuda:
            return self._gradients(features, pyramid, targets)
        with torch.cuda.device(features.device):
            return self._on_gpu(features, pyramid, targets)

    def _on_gpu(self, features: Tensor, pyramid: PointPyramid, targets: Sequence[Tensor]) -> Tensor:
        steps = self.network.config.steps()
        key = self._key_of(features, pyramid, targets)
        lengths = _lengths(pyramid, steps)
        if key != self._key:
            self._key, self._largest, self._graph = key, lengths, None
        if self._graph is None or not self._graph.fits(lengths):
            self._graph = None  # frees its memory before the next one takes its own
            for parameter in self._parameters:
                parameter.grad = None
            self._largest = [max(pair) for pair in zip(self._largest, lengths, strict=True)]
            rooms = [int(length * (1.0 + self.spare)) for length in self._largest]
            graph = _Graph(PaddedPyramid(pyramid, steps, rooms), features, targets)
            graph.load(features, pyramid, targets)
            graph.record(self._gradients, self._parameters)
            self._graph = graph
            self.recordings += 1
        self._graph.load(features, pyramid, targets)
        return self._graph.replay(self._parameters)

    def _gradients(self, features: Tensor, pyramid: PointPyramid, targets: Sequence[Tensor]) -> Tensor:
        for parameter in self._parameters:
            parameter.grad = None
        loss = self.loss(self.network(features, pyramid), *targets)
        if not isinstance(loss, Tensor) or loss.numel() != 1:
            _check.require(False, "loss", "a function that returns a scalar", loss)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def _key_of(self, features: Tensor, pyramid: PointPyramid, targets: Sequence[Tensor]) -> tuple[object, ...]:
        """Return everything that a recording depends on, except for the numbers of points and triplets."""
        autocast = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        return (
            features.dtype, features.device, len(pyramid.sizes[-1]), autocast, torch.get_float32_matmul_precision(),
            tuple((target.shape, target.dtype) for target in targets),
            tuple(t.cells.numel() > 0 for t in _triplets(pyramid, self.network.config.steps())),
            tuple((p.data_ptr(), p.requires_grad) for p in self._parameters),
        )  # fmt: skip


def _triplets(pyramid: PointPyramid, steps: _Steps) -> list[Triplets]:
    """Return the triplets of all steps in order, without those for the gradient of the network's input."""
    found = []
    for step in steps:
        geometry = pyramid.geometries[step]
        found.append(geometry.forward)
        if step[0] > 0:
            geometry.require_gradient()
            if geometry.backward is not None:
                found.append(geometry.backward)
    return found


def _lengths(pyramid: PointPyramid, steps: _Steps) -> list[int]:
    """Return the numbers of points of all levels, then those of the triplets."""
    return [points.shape[0] for points in pyramid.points] + [t.entries.numel() for t in _triplets(pyramid, steps)]


class PaddedPyramid:
    """Pyramid of fixed size whose geometry is copied from smaller ones of the same network.

    Points that the copied one has not are centres without triplets, and no triplet names them.

    Args:
        like: a pyramid of the network, with as many clouds.
        steps: steps that the network reads.
        rooms: largest numbers of points and triplets, in the order of :func:`_lengths`.

    Attributes:
        pyramid: what the network reads. Its ``sizes`` are the rooms; the ends of the clouds are in ``ends``.
    """

    def __init__(self, like: PointPyramid, steps: _Steps, rooms: Sequence[int]) -> None:
        device, levels = like.points[0].device, len(like.points)
        self._steps, self._rooms = steps, list(rooms)
        counts, entries = rooms[:levels], iter(rooms[levels:])

        def zeros(count: int, dtype: torch.dtype = torch.int64) -> Tensor:
            return torch.zeros(count, dtype=dtype, device=device)

        def padded(triplets: Triplets, rows: int) -> Triplets:
            size = next(entries)
            beside = size if triplets.cells.numel() else 0
            return Triplets(zeros(rows + 1), zeros(size, torch.int32), zeros(beside, torch.uint8))

        kept = tuple(zeros(count) for count in counts[1:])
        geometries, every = {}, list[Triplets]()
        for step in steps:
            source, target, _ = step
            given = like.geometries[step]
            every.append(forward := padded(given.forward, counts[target]))
            backward = None
            if source > 0 and given.backward is not None:
                every.append(backward := padded(given.backward, counts[source]))
            ends = (torch.tensor([0, counts[source]]), torch.tensor([0, counts[target]]))
            geometries[step] = replace(
                given,
                forward=forward,
                backward=backward,
                points=counts[source],
                offsets=ends[0],
                center_offsets=ends[1],
            )
        nowhere = torch.zeros(1, 3, device=device)
        points = tuple(nowhere.expand(count, 3) for count in counts)
        sizes = tuple((count,) for count in counts)
        self._ends = zeros(len(like.sizes[-1]))
        self.pyramid = PointPyramid(points, kept, sizes, geometries, self._ends)
        self._arrays = PaddedArrays(_arrays(self.pyramid, every))

    def fits(self, lengths: Sequence[int]) -> bool:
        """Return whether there is room for these numbers of points and triplets."""
        return all(length <= room for length, room in zip(lengths, self._rooms, strict=True))

    def load(self, pyramid: PointPyramid) -> None:
        """Copy the geometry of a pyramid that fits; never waits for the device."""
        self._arrays.fill(_arrays(pyramid, _triplets(pyramid, self._steps)))
        self._ends.copy_(torch.tensor(list(accumulate(pyramid.sizes[-1]))), non_blocking=True)


def _arrays(pyramid: PointPyramid, triplets: Sequence[Triplets]) -> list[Tensor]:
    """Return all index arrays, in the same order for all pyramids of a network."""
    found = list(pyramid.kept)
    for rows, entries, cells in triplets:
        found += [rows, entries, cells] if cells.numel() else [rows, entries]
    return found


class _Graph:
    """A recorded step with the memory that it reads and writes."""

    def __init__(self, padded: PaddedPyramid, features: Tensor, targets: Sequence[Tensor]) -> None:
        self._padded, self.fits = padded, padded.fits
        self._features = features.new_zeros(padded.pyramid.points[0].shape[0], features.shape[1])
        self._targets = [torch.empty_like(target, device=features.device) for target in targets]
        self._graph: torch.cuda.CUDAGraph | None = None
        self._loss = features.new_zeros(())
        self._gradients: list[Tensor | None] = []

    def load(self, features: Tensor, pyramid: PointPyramid, targets: Sequence[Tensor]) -> None:
        """Copy a batch into the graph's memory."""
        self._padded.load(pyramid)
        count = features.shape[0]
        self._features[:count].copy_(features, non_blocking=True)
        self._features[count:].zero_()
        for own, target in zip(self._targets, targets, strict=True):
            own.copy_(target, non_blocking=True)

    def record(
        self, work: Callable[[Tensor, PointPyramid, Sequence[Tensor]], Tensor], parameters: Sequence[Tensor]
    ) -> None:
        """Record the work on a batch that is loaded."""
        enabled, dtype = torch.is_autocast_enabled("cuda"), torch.get_autocast_dtype("cuda")
        given = self._features, self._padded.pyramid, self._targets
        # Weights that autocast keeps from before would not be cast again by the graph.
        with torch.autocast("cuda", dtype=dtype, enabled=enabled, cache_enabled=False):
            work(*given)  # compiles kernels and chooses algorithms
            for parameter in parameters:
                parameter.grad = None
            self._graph = torch.cuda.CUDAGraph()
            try:
                with (
                    torch.cuda.graph(self._graph, capture_error_mode="thread_local"),
                    torch.autograd.set_multithreading_enabled(False),
                ):
                    self._loss = work(*given)
            except RuntimeError as error:
                reason = str(error).split("\n", 1)[0]
                raise InputError(f"loss: expected a function that can be recorded, got: {reason}") from error
        self._gradients = [parameter.grad for parameter in parameters]

    def replay(self, parameters: Sequence[Tensor]) -> Tensor:
        """Run the recorded step on what is loaded; set the gradients and return the loss."""
        assert self._graph is not None
        self._graph.replay()
        for parameter, gradient in zip(parameters, self._gradients, strict=True):
            parameter.grad = gradient
        return self._loss.clone()
