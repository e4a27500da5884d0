"""Estimators of RAFT and SEA-RAFT, which keep the network on its device between calls."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from fullfield import _check
from fullfield.estimators._devices import check_fork_safety_and_record_use, create_context_without_tf32_convolutions
from fullfield.estimators._frames import check_frame_pair
from fullfield.estimators._progress import ProgressReporter, map_progress_to_range_if_any
from fullfield.estimators._still import StillAreas, find_still_areas
from fullfield.estimators.network_config import NetworkSettings
from fullfield.estimators.protocol import BidirectionalFlow, FlowWithRoughBackward, LoadingEstimator, Progress
from fullfield.estimators.refined import RefinedEstimator
from fullfield.estimators.registry import METHODS, get_method, resolve_method_name
from fullfield.models.cascade import (
    MIN_START_SIDE,
    FlowWithLogScale,
    average_flows_or_select_confident,
    compute_enlarged_size,
    compute_quarter_size,
    list_quartered_sizes,
    mark_long_motion,
    resample_flow,
    resample_flow_with_log_scale,
    resample_frame,
    resample_pair_to_sizes,
    select_more_confident_flow,
)
from fullfield.models.downloads import DownloadProgress, compute_sha256
from fullfield.models.framing import choose_padding
from fullfield.models.mirroring import MIRRORED_AXES, mirror_flow
from fullfield.models.sea_raft.model import compute_expected_log_scale
from fullfield.models.weights import NETWORKS, WeightsOrigin, find_weights_origin, load_weights
from fullfield.ops.correlation.protocol import BACKENDS, LOOKUPS, LookupRequest, compute_level_sizes
from fullfield.ops.tvl1.config import THREE_PASSES, RefinementConfig

if TYPE_CHECKING:
    from fullfield.models.network import FlowNetwork
    from fullfield.models.prepared import PreparedFlow, PreparedFlowCache
    from fullfield.models.shape import NetworkArchitecture

logger = logging.getLogger("fullfield")

_TINY = (16, 16)
_DIGITS = 12
# Sizes of frames whose fast forms are kept, and the pixels of a pair up to which they are: a set of frames often mixes
# a few sizes, and recording takes longer than estimating.
_KEPT_FRAME_SIZES, _SMALL_PIXELS = 4, 1 << 20
# Updates of the size that is searched for long motion: those that tell, forward, whether there is any, and of a start.
_SEARCH_UPDATES, _START_UPDATES = 1, 3
# Most updates of a guide that a flow of a coarser size starts near its end.
_ROUGH_UPDATES = 3
# Pixels of a size at which a flow of a coarser size saves one more update.
_LARGE_PIXELS = 4_000_000


class PairSize(NamedTuple):
    """Number, size and device of pairs of frames."""

    batch: int
    height: int
    width: int
    device: torch.device

    @classmethod
    def from_frame(cls, frames: Tensor) -> PairSize:
        """Return the size of frames [B, C, H, W]."""
        batch, _, height, width = frames.shape
        return cls(batch, height, width, frames.device)

    @property
    def pixels_per_frame(self) -> int:
        """Number of pixels of one frame."""
        return self.height * self.width


def _build_float32_lookup_request(architecture: NetworkArchitecture, size: PairSize) -> LookupRequest:
    """Return what a network in float32 requests of the correlation lookup for frames of this size."""
    rows, columns = choose_padding(size.height, size.width).count_feature_rows_and_columns(size.height, size.width)
    return LookupRequest(
        batch=size.batch,
        channels=architecture.matched_channels,
        size1=(rows, columns),
        sizes2=compute_level_sizes(rows, columns, architecture.levels),
        radius=architecture.radius,
        dtype=torch.float32,
        device=size.device,
        pooled=True,
        precision=torch.get_float32_matmul_precision(),
    )


class _NetworkFlow(NamedTuple):
    """Flow in one direction, with its log scale as in :class:`FlowWithLogScale` if it was requested."""

    flow: Tensor
    log_scale: Tensor | None = None


class _RequestedResults(NamedTuple):
    """Results that a call requests of a network."""

    log_scale: bool = False
    is_backward_rough: bool = False
    """The backward flow only guides a refinement: it takes the fewest updates."""


class NetworkEstimator(LoadingEstimator):
    """Estimator of RAFT or SEA-RAFT flow for frames of any size. The network is loaded at the first call and kept.

    Weights that are not on this machine are downloaded then; a file that has changed is loaded again. The fast form is
    prepared once per size and kept for the sizes of the last call (small frames: of the last few). Calls from several
    threads wait for each other. An estimator can be pickled and copied; the copy loads its own network.

    Args:
        method: ``"fullfield-s"``, ``"fullfield-m"``, ``"raft"``, ``"raft-small"``, ``"sea-raft-s"``, ``"sea-raft-m"``
            or ``"sea-raft-l"``.
        config: a :class:`RAFTSettings` for RAFT, a :class:`NetworkSettings` for SEA-RAFT; by default the method's
            own weights and number of updates, in half precision on a GPU; fullfield's own networks cascade.
        backend: backend of the correlation lookup, as for :class:`fullfield.nn.CorrelationPyramid`.
        cpu_bfloat16: True computes in bfloat16 on a CPU that has instructions for it (AVX-512 BF16), where
            ``config.precision`` is "auto".
    """

    config: NetworkSettings

    def __init__(
        self,
        method: str = "raft",
        config: NetworkSettings | None = None,
        *,
        backend: str | None = None,
        cpu_bfloat16: bool = False,
    ) -> None:
        self.method = resolve_method_name(method)
        _check.check_choice(self.method, "method", NETWORKS)
        entry = get_method(self.method)
        kind = entry.import_config_class()
        config = kind() if config is None else config
        _check.require(type(config) is kind, "config", f"a {kind.__name__}", _check.describe_value(config))
        if config.cascade is None:  # without updates, a smaller size would only be coarser
            updates = config.updates != 0 or bool(config.coarse_updates)
            config = config.replace(cascade=entry.cascades and updates)
        self.config = config
        self._cpu_bfloat16 = cpu_bfloat16
        if backend is not None:
            _check.check_choice(backend, "backend", BACKENDS)
        self._requested = backend
        self._reset_to_unloaded()

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_cpu_bfloat16": self._cpu_bfloat16}

    def _reset_to_unloaded(self) -> None:
        super()._reset_to_unloaded()
        self._network: FlowNetwork | None = None
        self._weights: WeightsOrigin | None = None
        self._stamp: tuple[object, ...] = ()
        self._used: str | None = None
        self._precision: str = self.config.precision
        self._fast: PreparedFlowCache | None = None

    @property
    def parameters(self) -> Mapping[str, Any]:
        """Configuration with the numbers that the method chose.

        Once the network is loaded, ``weights`` is the name of what was loaded, ``weights_sha256`` the first 12 digits
        of the file's checksum (None for random weights), and ``precision`` is no longer "auto".
        """
        fine, coarse = self._get_fine_and_coarse_updates()
        numbers: dict[str, Any] = {"updates": fine, "coarse_updates": coarse if self.config.cascade else None}
        max_updates = NETWORKS[self.method].max_updates
        if self.config.updates is None and max_updates is not None:
            numbers["max_updates"] = max_updates
        return {**self.config.as_dict(), **numbers, "precision": self._precision, **self._origin}

    @property
    def backend(self) -> str:
        """Backend of the correlation lookup in the last call, at the finest level; before it the requested one."""
        return self._used or self._requested or "automatic"

    def prepare(
        self,
        device: str | torch.device = "cpu",
        size: tuple[int, int] | None = None,
        download_progress: DownloadProgress | None = None,
    ) -> None:
        """Load the network onto ``device`` and compile what it runs on now instead of at the first call.

        Args:
            device: device of the frames.
            size: their height and width; without it the fast form waits for the first call.
            download_progress: receives the downloaded and the total bytes of the weights while they are downloaded.
        """
        target = torch.empty(0, device=_check.resolve_available_device(device)).device  # with its index
        check_fork_safety_and_record_use(target)
        with self._lock, torch.no_grad():
            network = self._get_or_load_network(target, download_progress)
            exact = self._precision == "exact"
            if exact or (target.type == "cpu" and self._fast is None):  # a GPU runs the fast form while preparing it
                blank = torch.zeros(1, 3, *_TINY, device=target, dtype=torch.float32)
                tiny = PairSize.from_frame(blank)
                run = (
                    self._choose_and_set_lookup_backend(network, tiny)
                    if exact
                    else self._get_or_prepare_network(network, tiny, 1)
                )
                run(blank, blank, updates=1)
            if not exact and size is not None:
                height, width = self._compute_network_size(*size)
                levels = self._list_cascade_sizes(PairSize(1, height, width, target))
                if (start := self._get_start_size_or_none(levels[-1])) is not None:
                    levels.append(start)
                if self.config.double:
                    levels.append(PairSize(1, 2 * height, 2 * width, target))
                for level in levels:
                    self._get_or_prepare_network(network, level, len(levels))

    def __call__(
        self, frame1: Tensor, frame2: Tensor, *, initial_flow: Tensor | None = None, progress: Progress | None = None
    ) -> Tensor:
        """Estimate the flow [B, 2, H, W] of frames [B, C, H, W]; see :class:`Estimator`."""
        return self._estimate_with_still_areas(frame1, frame2, [initial_flow], progress, _RequestedResults())[0][0].flow

    def bidirectional(
        self,
        frame1: Tensor,
        frame2: Tensor,
        *,
        initial_flow: Tensor | None = None,
        initial_backward: Tensor | None = None,
        progress: Progress | None = None,
    ) -> BidirectionalFlow | None:
        """Estimate the forward and the backward flow; each frame goes through the feature encoder once.

        Without updates the result is None. ``initial_flow`` starts the forward flow, ``initial_backward`` the other.
        """
        if 0 in self._get_fine_and_coarse_updates():
            return None
        starts = initial_flow, initial_backward
        (forward, backward), _ = self._estimate_with_still_areas(
            frame1, frame2, starts, progress, _RequestedResults(log_scale=True)
        )
        scales = None
        if forward.log_scale is not None and backward.log_scale is not None:
            scales = forward.log_scale[:, 0], backward.log_scale[:, 0]
        return BidirectionalFlow(forward.flow, backward.flow, scales)

    def estimate_with_rough_backward_or_none(
        self,
        frame1: Tensor,
        frame2: Tensor,
        *,
        initial_flow: Tensor | None = None,
        log_scale: bool = False,
        progress: Progress | None = None,
    ) -> FlowWithRoughBackward | None:
        """Estimate the flow, and in less time a backward flow as good as a refinement needs.

        The backward flow takes the configured or the least number of updates; the latter is 3 at most where a flow of a
        coarser size starts it, 2 if it has 4 million pixels or more. The result is None without updates, and so it is
        for a network without uncertainty, for whose backward flow no number of updates was measured.
        """
        if 0 in self._get_fine_and_coarse_updates() or not NETWORKS[self.method].has_mixture:
            return None
        requested = _RequestedResults(log_scale=log_scale, is_backward_rough=True)
        (forward, backward), still = self._estimate_with_still_areas(
            frame1, frame2, (initial_flow, None), progress, requested
        )
        scale = forward.log_scale if log_scale else None
        return FlowWithRoughBackward(forward.flow, backward.flow, still, None if scale is None else scale[:, 0])

    def _estimate_with_still_areas(
        self,
        frame1: Tensor,
        frame2: Tensor,
        initial_flows: Sequence[Tensor | None],
        progress: Progress | None,
        requested: _RequestedResults,
    ) -> tuple[list[_NetworkFlow], StillAreas | None]:
        """Return the forward flow, and with two ``initial_flows`` the backward flow; areas that agree have no motion.

        These areas are the other result.
        """
        check_frame_pair(frame1, frame2)
        check_fork_safety_and_record_use(frame1.device)
        with torch.no_grad(), torch.autocast(frame1.device.type, enabled=False):
            still = find_still_areas(frame1, frame2)
            size = frame1.shape[-2:]
            network_size = self._compute_network_size(*size)
            pair = resample_frame(frame1, network_size), resample_frame(frame2, network_size)
            results = [
                self._resample_result(result, *size)
                for result in self._estimate_coarse_to_fine(*pair, initial_flows, progress, requested)
            ]
            if still is None or 0 in self._get_fine_and_coarse_updates():
                return results, still
            return [
                _NetworkFlow(still.zero_still_and_fill_flat_flow(one.flow), one.log_scale) for one in results
            ], still

    def _estimate_coarse_to_fine(
        self,
        frame1: Tensor,
        frame2: Tensor,
        initial_flows: Sequence[Tensor | None],
        progress: Progress | None,
        requested: _RequestedResults,
    ) -> list[_NetworkFlow]:
        """Estimate from the smallest size to the largest."""
        pair = frame1.expand(-1, 3, -1, -1), frame2.expand(-1, 3, -1, -1)
        fine, coarse = self._get_fine_and_coarse_updates()
        configured_fine, configured_coarse = self._get_configured_fine_and_coarse_updates()
        with self._lock:
            network = self._get_or_load_network(frame1.device)
            sizes = self._list_cascade_sizes(PairSize.from_frame(frame1))
            pairs = resample_pair_to_sizes(*pair, [(size.height, size.width) for size in sizes])
            start_size = None if initial_flows[0] is not None else self._get_start_size_or_none(sizes[-1])
            larger = bool(self.config.double)
            own = fine * PairSize.from_frame(pair[0]).pixels_per_frame
            smaller = sum(coarse * PairSize.from_frame(one).pixels_per_frame for one, _ in pairs[1:])
            # A guide is not estimated again from mirrored frames.
            mirrored_count = 1 if requested.is_backward_rough else len(initial_flows)
            enlarged = own * (4 * len(initial_flows) + len(MIRRORED_AXES) * mirrored_count) if larger else 0
            search = 0 if start_size is None else _SEARCH_UPDATES * start_size.pixels_per_frame
            report = ProgressReporter(progress, search + len(initial_flows) * (smaller + own) + enlarged)
            requested = requested._replace(log_scale=requested.log_scale or larger)
            at = partial(
                self._estimate_at_frame_size,
                network,
                progress_reporter=report,
                cached_size_count=len(pairs) + larger + (start_size is not None),
                requested=requested,
            )
            has_coarse_start = False
            if start_size is not None:
                shapes = [(size.height, size.width) for size in (sizes[-1], start_size)]
                start_pair = resample_pair_to_sizes(*pairs[-1], shapes)[1]
                [forward] = at(start_pair, _SEARCH_UPDATES, [None], requested=_RequestedResults())
                is_long = mark_long_motion(forward.flow, *shapes[0]).tolist()
                if any(is_long) and not all(is_long):
                    search_fraction = report.completed_fraction
                    pairs_progress = map_progress_to_range_if_any(progress, search_fraction, 1 - search_fraction)
                    return self._estimate_pairs_one_by_one(frame1, frame2, initial_flows, pairs_progress, requested)
                has_coarse_start = all(is_long)
                if has_coarse_start:
                    started = at(start_pair, _START_UPDATES, initial_flows, progress_reporter=ProgressReporter(None, 0))
                    initial_flows = [one.flow for one in started]
            for frames in pairs[:0:-1]:
                flows = at(frames, configured_coarse, initial_flows, has_coarse_start=has_coarse_start)
                initial_flows, has_coarse_start = [one.flow for one in flows], True
            at_own_size = partial(at, updates=configured_fine, has_coarse_start=has_coarse_start)
            own_flows = at_own_size(pair, initial_flows=initial_flows)
            if not larger:
                return own_flows
            estimates = cast("list[FlowWithLogScale]", own_flows)
            for axes in MIRRORED_AXES:
                mirrored_flows = at_own_size(
                    (pair[0].flip(axes), pair[1].flip(axes)),
                    initial_flows=[
                        None if start is None else mirror_flow(start, axes) for start in initial_flows[:mirrored_count]
                    ],
                    requested=requested._replace(is_backward_rough=False),
                )
                for index, (flow, log_scale) in enumerate(cast("list[FlowWithLogScale]", mirrored_flows)):
                    upright = FlowWithLogScale(mirror_flow(flow, axes), log_scale.flip(axes))
                    estimates[index] = average_flows_or_select_confident(estimates[index], upright)
            height, width = pair[0].shape[-2:]
            large_pair = resample_pair_to_sizes(*pair, [(height, width), (2 * height, 2 * width)])[1]
            starts = [one.flow for one in estimates]  # from nothing, it loses motion beyond the training range
            large_flows = at(large_pair, configured_fine, starts, has_coarse_start=True)
            best = map(select_more_confident_flow, estimates, cast("list[FlowWithLogScale]", large_flows))
            return [_NetworkFlow(one.flow, self._clamp_log_scale(one.log_scale)) for one in best]

    def _estimate_pairs_one_by_one(
        self,
        frame1: Tensor,
        frame2: Tensor,
        initial_flows: Sequence[Tensor | None],
        progress: Progress | None,
        requested: _RequestedResults,
    ) -> list[_NetworkFlow]:
        """Estimate a batch in which only some pairs need a start, so that none depends on the others."""
        results, count = [], len(frame1)
        for index in range(count):
            single = slice(index, index + 1)
            starts = [None if flow is None else flow[single] for flow in initial_flows]
            pair_progress = map_progress_to_range_if_any(progress, index / count, 1 / count)
            pair = frame1[single], frame2[single]
            results.append(self._estimate_coarse_to_fine(*pair, starts, pair_progress, requested))
        return [
            _NetworkFlow(
                torch.cat([one.flow for one in same]),
                None if same[0].log_scale is None else torch.cat([cast("Tensor", one.log_scale) for one in same]),
            )
            for same in zip(*results, strict=True)
        ]

    def _estimate_at_frame_size(
        self,
        network: FlowNetwork,
        frames: tuple[Tensor, Tensor],
        updates: int | None,
        initial_flows: Sequence[Tensor | None],
        *,
        progress_reporter: ProgressReporter,
        cached_size_count: int,
        requested: _RequestedResults,
        has_coarse_start: bool = False,
    ) -> list[_NetworkFlow]:
        """Estimate at the size of ``frames``; frames of one size need ``cached_size_count`` fast forms.

        ``initial_flows`` of a coarser size (``has_coarse_start``) are near the end, so without a configured number a
        guide takes fewer updates from them, and so do some networks: one fewer again at large sizes.
        """
        size, exact, both = PairSize.from_frame(frames[0]), self._precision == "exact", len(initial_flows) > 1
        block: Any = network.update_block
        count = rough_count = network.config.updates if updates is None else updates  # or more, while the flow moves
        if has_coarse_start and updates is None:
            saved_updates = int(size.pixels_per_frame >= _LARGE_PIXELS)
            rough_count = min(count, _ROUGH_UPDATES - saved_updates)
            if not network.config.adapts_coarse_starts:
                updates = count - saved_updates
        arguments = [*frames, updates, *initial_flows]
        if requested.is_backward_rough:
            arguments.append(rough_count)
        with progress_reporter.report_updates_of_block(block, size, len(initial_flows) * count):
            runner: Any = (
                self._choose_and_set_lookup_backend(network, size)
                if exact
                else self._get_or_prepare_network(network, size, cached_size_count)
            )
            with create_context_without_tf32_convolutions(size.device) if exact else nullcontext():
                informs = requested.log_scale or (both and exact)  # the module has no call without its mixture
                if not network.config.has_mixture or not informs:
                    flows = runner.bidirectional(*arguments) if both else (runner(*arguments),)
                    results = [_NetworkFlow(flow) for flow in flows]
                else:
                    informed = runner.bidirectional_with_mixture if both else runner.flow_with_mixture
                    pairs = informed(*arguments) if both else (informed(*arguments),)
                    config = cast("Any", network.config)
                    # Copies, because the flow is part of a tensor with the mixture, which would stay in memory.
                    results = [
                        _NetworkFlow(flow.clone(), compute_expected_log_scale(info, config)) for flow, info in pairs
                    ]
        if not exact:
            self._used = runner.backend
        return results

    def _choose_precision(self, device: torch.device) -> str:
        """Return the precision for frames on ``device``: "exact" (float32) or one of half precision."""
        precision = self.config.precision
        if precision == "auto":
            precision = "exact"
            if device.type == "cuda" and self._requested in (None, "cuda"):
                from fullfield.models.prepared import explain_no_half_precision

                reason = explain_no_half_precision(device)
                precision = "fast" if reason is None else "exact"
                if reason is not None and self._precision == "auto":
                    logger.debug(
                        "%s on %s: float32, because half precision is not available: %s", self.method, device, reason
                    )
            elif device.type == "cpu" and self._cpu_bfloat16 and self._requested is None:
                from fullfield.models.prepared.runner import choose_cpu_dtype

                precision = "fast" if choose_cpu_dtype() == torch.bfloat16 else "exact"
        return precision

    def _get_fine_and_coarse_updates(self) -> tuple[int, int]:
        """Return the number of updates at the finest level, and at the others."""
        own = NETWORKS[self.method].updates
        fine, coarse = (own if number is None else number for number in self._get_configured_fine_and_coarse_updates())
        return fine, coarse

    def _get_configured_fine_and_coarse_updates(self) -> tuple[int | None, int | None]:
        """Return :meth:`_get_fine_and_coarse_updates`, None where the network decides."""
        fine = self.config.updates
        return fine, fine if self.config.coarse_updates is None else self.config.coarse_updates

    @property
    def _is_own_cascade(self) -> bool:
        """Whether one of the package's networks is cascaded."""
        return bool(self.config.cascade) and get_method(self.method).cascades

    def _compute_network_size(self, height: int, width: int) -> tuple[int, int]:
        """Return the (height, width) at which frames are estimated; only the package's own networks enlarge frames."""
        return compute_enlarged_size(height, width) if self._is_own_cascade else (height, width)

    def _resample_result(self, result: _NetworkFlow, height: int, width: int) -> _NetworkFlow:
        """Resample a result to the frames' size, in their pixels."""
        if result.flow.shape[-2:] == (height, width):
            return result
        if result.log_scale is None:
            return _NetworkFlow(resample_flow(result.flow, height, width))
        estimate = FlowWithLogScale(result.flow, result.log_scale)
        flow, log_scale = resample_flow_with_log_scale(estimate, height, width)
        return _NetworkFlow(flow, self._clamp_log_scale(log_scale))

    def _clamp_log_scale(self, log_scale: Tensor) -> Tensor:
        """Return the log scale with none below those of one size, with which the confidence was fitted."""
        return log_scale.clamp(cast("Any", NETWORKS[self.method]).log_scale_min)

    def _list_cascade_sizes(self, size: PairSize) -> list[PairSize]:
        """Return the sizes of the cascade for frames of ``size``, finest first."""
        if not self.config.cascade:
            return [size]
        sizes = list_quartered_sizes(size.height, size.width, enlarges_last=self._is_own_cascade)
        return [size._replace(height=height, width=width) for height, width in sizes]

    def _get_start_size_or_none(self, coarsest: PairSize) -> PairSize | None:
        """Return the size that is searched for motion too long for the coarsest one, of the package's networks."""
        if not self._is_own_cascade or 0 in self._get_fine_and_coarse_updates():
            return None
        height, width = compute_quarter_size(coarsest.height, coarsest.width)
        return coarsest._replace(height=height, width=width) if min(height, width) >= MIN_START_SIDE else None

    def _choose_and_set_lookup_backend(self, network: FlowNetwork, size: PairSize) -> FlowNetwork:
        """Return the network with its lookup's backend set to the one for this size."""
        backend = LOOKUPS.choose(self._requested, _build_float32_lookup_request(network.config, size))
        if backend != self._used:
            logger.debug(
                "%s at %dx%d on %s: lookup %s, float32", self.method, size.width, size.height, size.device, backend
            )
        self._used = network.correlation = backend
        return network

    def _get_or_prepare_network(self, network: FlowNetwork, size: PairSize, cached_size_count: int) -> PreparedFlow:
        """Return the fast form for one size, of ``cached_size_count`` that frames of one size need."""
        if self._fast is None:
            from fullfield.models.prepared import PreparedFlowCache

            self._fast = PreparedFlowCache(network, self._precision)
            dtype = str(self._fast.dtype).removeprefix("torch.")
            logger.debug("%s on %s: precision %s, %s", self.method, size.device, self._precision, dtype)
        is_small = size.batch * size.pixels_per_frame <= _SMALL_PIXELS
        self._fast.sizes = cached_size_count * (_KEPT_FRAME_SIZES if is_small else 1)
        return self._fast.get_or_prepare_size(size.height, size.width, size.batch)

    def _get_or_load_network(
        self, device: torch.device, download_progress: DownloadProgress | None = None
    ) -> FlowNetwork:
        """Return the network with its weights, on ``device``."""
        origin = self._weights
        if origin is None or (origin.path is not None and not origin.path.is_file()):
            origin = self._weights = find_weights_origin(self.method, self.config.weights).fetch(download_progress)
        stamp = (*origin.compute_file_stamp(), device)
        if self._network is None or self._stamp != stamp:
            self._network = None  # frees the old one first
            self._fast = None
            shape = self.config.configure_architecture(NETWORKS[self.method])
            network = load_weights(shape, origin, correlation=self._requested).to(device)
            if device.type == "cpu":
                network.optimize_for_cpu()
            self._network = network
            checksum = None if origin.path is None else compute_sha256(origin.path)[:_DIGITS]
            self._origin = {"weights": origin.name, "weights_sha256": checksum}
            self._stamp = stamp
            logger.debug("%s on %s: loaded weights %s", self.method, device, origin.path or origin.name)
        self._precision = self._choose_precision(device)
        return self._network


class AutoEstimator(RefinedEstimator):
    """Network in the package, refined (:class:`RefinedEstimator`) in three passes of one round.

    Where the first round hardly lowers the pair's image mismatch, the change of the flow is kept in part or not at all.
    On a CPU with AVX-512 BF16 the network computes in bfloat16, unless ``precision`` is "exact" or a backend is named
    and ``precision`` is "auto". With "fast" or "bfloat16" the refinement is one pass of two rounds, and on the CPU
    the network runs alone.

    Args:
        config: configuration of the network.
        backend: backend of the correlation lookup.
    """

    def __init__(self, config: NetworkSettings | None = None, *, backend: str | None = None) -> None:
        self._is_fast = config is not None and config.precision not in ("auto", "exact")
        refinement = RefinementConfig() if self._is_fast else THREE_PASSES
        network = NetworkEstimator(METHODS["auto"].network or "", config, backend=backend, cpu_bfloat16=True)
        super().__init__(network, refinement)

    @property
    def method(self) -> str:
        """Name of the method; ``parameters`` name the network's weights and describe the refinement."""
        return "auto"

    def should_refine(self, device: torch.device) -> bool:
        """Return whether frames on the device are refined."""
        return not (self._is_fast and device.type == "cpu")
