"""Coarse to fine for one size and batch: every buffer, and what is launched in which order."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor

from fullfield.ops import _launching
from fullfield.ops._launching import Launch, raw_stream
from fullfield.ops.tvl1.config import TVL1Config
from fullfield.ops.tvl1.cuda import fused
from fullfield.ops.tvl1.cuda.passes import KernelLaunches, Planes, build_plane_descriptor
from fullfield.ops.tvl1.cuda.pipeline import RegisterPipeline
from fullfield.ops.tvl1.cuda.state import FLOW, Level, compute_row_pitch_in_elements, count_state_elements
from fullfield.ops.tvl1.frames import compute_level_sizes, compute_progress_and_level_text

if TYPE_CHECKING:
    from fullfield.ops.tvl1.frames import Progress

DTYPES = {"float32": torch.float32, "float16": torch.float16}


class IterationSchedule(Protocol):
    """Schedule of a level's inner iterations; :class:`RegisterPipeline` documents both methods."""

    def prepare_iterations(self, level: Level, iterations: int) -> None:
        """Compile and allocate what the iterations of a level need."""
        ...

    def launch_iterations_and_update_front(
        self, level: Level, iterations: int, config: TVL1Config, stream: int, *, zero_dual: bool = False
    ) -> None:
        """Queue the iterations of a level on a stream."""
        ...


class Engine:
    """Launches TV-L1 on the current stream; not for two threads or streams at once.

    Whole warps are one kernel on all but large levels, unless they may stop early; the others go pass by pass. With a
    ``schedule`` every level does, and its iterations are the schedule's.

    The frames' pyramids have two slots, 0 and 1. ``start`` [B, 2, h, w] of the coarsest level is where the flow
    begins; whoever solves fills it. :meth:`compute_bound_flow` reads the address of its result [B, 2, H, W] from device
    memory, where :meth:`convert_frames_to_grey_and_bind_output` writes it: so a captured graph serves every address.
    """

    def __init__(
        self,
        batch: int,
        height: int,
        width: int,
        config: TVL1Config,
        device: torch.device,
        schedule: IterationSchedule | None = None,
    ) -> None:
        self.config, self.batch, self.device = config, batch, device
        self.sizes = sizes = compute_level_sizes(height, width, config.scales, config.scale_factor)
        self._schedule: IterationSchedule = RegisterPipeline() if schedule is None else schedule
        self._dtype = dtype = DTYPES[config.precision]
        self._passes, self._about = KernelLaunches(device, dtype), _launching.get_device_gpu_properties(device)
        pitches = [compute_row_pitch_in_elements(w, torch.float32) for _, w in sizes]
        self._images = [self._allocate((2, batch, h, p)) for (h, _), p in zip(sizes, pitches, strict=True)]
        # Neighbouring levels' flows lie in different memory, as one becomes the other.
        flows = [self._allocate((batch * FLOW * h * p,)) for (h, _), p in zip(sizes[:2], pitches, strict=False)]
        self._flows = [
            flows[n % 2][: batch * FLOW * h * p].view(batch, FLOW, h, p)
            for n, ((h, _), p) in enumerate(zip(sizes, pitches, strict=True))
        ]
        self.start = self._allocate((batch, FLOW, sizes[-1][0], pitches[-1])).zero_()
        self._strip = self._allocate((batch, FLOW, sizes[-1][0], pitches[0]))
        # The levels share one state, because that of a level is of no use to the next finer one.
        self._state = self._allocate((count_state_elements(batch, *sizes[0], dtype),), dtype)
        self._levels = [Level(batch, *size, dtype, device, self._state) for size in sizes]
        self._tilings = [
            fused.choose_tiling_if_faster(batch, *size, config, self._about) if schedule is None else None
            for size in sizes
        ]
        fused.load_fused_kernels(
            [(tiling, config, dtype) for tiling in self._tilings if tiling is not None], self._about
        )
        self.flags = torch.zeros(1, dtype=torch.int32, device=device)
        self._flow_at = torch.zeros(1, dtype=torch.int64, device=device)
        self._launches: dict[Hashable, Launch] = {}
        for level, tiling in zip(self._levels, self._tilings, strict=True):
            if tiling is None:
                self._schedule.prepare_iterations(level, config.iterations)

    def _allocate(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=self.device)

    def iterate_tensors(self) -> Iterator[Tensor]:
        """Yield all tensors of this object on the device; the first start from a flow adds two tables."""
        yield from (*self._images, *self._flows[:2], self._state, self.start, self._strip)
        yield from (self.flags, self._flow_at)
        yield from self._passes.iterate_table_tensors()

    def convert_frames_to_grey_and_bind_output(
        self, frames: tuple[Tensor, ...], slot: int, flow_out: Tensor | None, *, sets_flags: bool = False
    ) -> None:
        """Read one or two frames [B, C, H, W] into the finest images from ``slot`` on.

        :meth:`compute_bound_flow` will write to ``flow_out`` [B, 2, H, W], contiguous. With ``sets_flags`` values out
        of range are noted.
        """
        images = tuple(self._images[0][slot : slot + len(frames)])
        flag_tensor = self.flags if sets_flags else None
        self._passes.build_grey_launch(frames, images, flag_tensor, flow_out, self._flow_at)(
            raw_stream(self._about.index)
        )

    def resample_to_initial_flow(self, flow: Tensor) -> None:
        """Fill ``start`` from a flow [B, 2, H, W], contiguous."""
        self._build_vertical_initial_flow_launch(build_plane_descriptor(flow), None)(raw_stream(self._about.index))
        self._launch_cached_kernel("start across", self._build_horizontal_initial_flow_launch)

    def resample_last_result_to_initial_flow(self) -> None:
        """Fill ``start`` from the flow just written."""
        self._launch_cached_kernel(
            "start down",
            lambda: self._build_vertical_initial_flow_launch(self._build_result_plane_descriptor(), self._flow_at),
        )
        self._launch_cached_kernel("start across", self._build_horizontal_initial_flow_launch)

    def _build_vertical_initial_flow_launch(self, source: Planes, source_at: Tensor | None) -> Launch:
        target = build_plane_descriptor(self._strip, self.sizes[0][1])
        return self._passes.build_resample_launch(source, target, "gaussian", "none", source_at=source_at)

    def _build_horizontal_initial_flow_launch(self) -> Launch:
        (height, width), (h, w) = self.sizes[0], self.sizes[-1]
        source, target = build_plane_descriptor(self._strip, width), build_plane_descriptor(self.start, w)
        return self._passes.build_resample_launch(source, target, "none", "gaussian", scale=(w / width, h / height))

    def _build_result_plane_descriptor(self) -> Planes:
        height, width = self.sizes[0]
        size = height * width
        return Planes(None, self.batch, FLOW, height, width, width, size, FLOW * size)

    def _launch_cached_kernel(self, key: Hashable, build_launch: Callable[[], Launch]) -> None:
        """Launch what was made for ``key``, whose addresses stay what they are."""
        launch = self._launches.get(key)
        if launch is None:
            launch = self._launches[key] = build_launch()
        launch(raw_stream(self._about.index))

    def build_pyramid(self, slot: int, frame_count: int = 1) -> None:
        """Compute the coarser images of ``frame_count`` frames from the finest at ``slot``."""
        for n in range(1, len(self.sizes)):

            def build_reduce_launch(n: int = n) -> Launch:
                finer, coarser = (self._images[k][slot : slot + frame_count].flatten(0, 1)[:, None] for k in (n - 1, n))
                source, target = (
                    build_plane_descriptor(finer, self.sizes[n - 1][1]),
                    build_plane_descriptor(coarser, self.sizes[n][1]),
                )
                return self._passes.build_resample_launch(source, target, "gaussian")

            self._launch_cached_kernel(("reduce", n, slot, frame_count), build_reduce_launch)

    def compute_bound_flow(
        self, first_frame: int, *, sets_flags: bool = False, progress: Progress | None = None
    ) -> None:
        """Compute the flow from frame ``first_frame`` to the other; with ``sets_flags`` note if it is not finite."""
        last = len(self.sizes) - 1
        for level_index in range(last, -1, -1):
            level = self._levels[level_index]
            level.front = 0
            if level_index < last:
                self._upsample_flow_to_level(level_index)
            for warp in range(self.config.warps):
                coarsest, ends = level_index == last and warp == 0, warp == self.config.warps - 1
                zero = warp == 0  # the dual variable
                flow = self.start if coarsest else self._get_flow_buffer(level_index, warp)
                final = level_index == 0 and ends
                if self._tilings[level_index] is None:
                    self._warp_and_iterate_level(level_index, first_frame, flow, zero)
                    self._filter_flow_into_target(level_index, final=final, sets_flags=sets_flags)
                else:
                    self._launch_fused_warp_and_swap_front(
                        level_index,
                        first_frame,
                        flow,
                        self._get_flow_buffer(level_index, warp + 1),
                        (zero, not ends, final, sets_flags),
                    )
                if progress is not None:
                    progress(*compute_progress_and_level_text(self.sizes, level_index, (warp + 1) / self.config.warps))

    def _get_flow_buffer(self, level_index: int, warp: int) -> Tensor:
        """Return the memory of a level's flow before a warp; the last warp leaves it in ``_flows``.

        A warp in one kernel takes it to another place: to where the data term would lie, which it does not store.
        """
        flow, level = self._flows[level_index], self._levels[level_index]
        if self._tilings[level_index] is None or (self.config.warps - warp) % 2 == 0:
            return flow
        unused = level.memory.view(-1)[level.data_plane * level.plane_step :].view(torch.float32)
        item = level.item_step * level.dtype.itemsize // flow.dtype.itemsize
        return unused.as_strided(flow.shape, (item, *flow.stride()[1:]), unused.storage_offset())

    def _upsample_flow_to_level(self, level_index: int) -> None:
        """Enlarge the flow of the next coarser level to level ``level_index``."""
        (height, width), (h, w) = self.sizes[level_index], self.sizes[level_index + 1]

        def build_flow_launch() -> Launch:
            source, target = (
                build_plane_descriptor(self._flows[level_index + 1], w),
                build_plane_descriptor(self._get_flow_buffer(level_index, 0), width),
            )
            return self._passes.build_resample_launch(source, target, "linear", scale=(width / w, height / h))

        self._launch_cached_kernel(("flow", level_index), build_flow_launch)

    def _warp_and_iterate_level(self, level_index: int, first_frame: int, flow: Tensor, zero_dual: bool) -> None:
        config, level = self.config, self._levels[level_index]
        images = self._images[level_index]

        def build_linearise_launch() -> Launch:
            pair = images[first_frame], images[1 - first_frame]
            return self._passes.build_linearise_launch(*pair, flow, level, config.gradient_blend)

        self._launch_cached_kernel(
            ("warp", level_index, first_frame, level.front, flow is self.start), build_linearise_launch
        )
        self._schedule.launch_iterations_and_update_front(
            level, config.iterations, config, raw_stream(self._about.index), zero_dual=zero_dual
        )

    def _launch_fused_warp_and_swap_front(
        self, level_index: int, first_frame: int, flow: Tensor, target: Tensor, options: tuple[bool, bool, bool, bool]
    ) -> None:
        """Run a warp in one kernel; ``options``: dual starts at zero, dual is used later, flow is final, note flags."""
        config, level, tiling = self.config, self._levels[level_index], self._tilings[level_index]
        zeroes_dual, keeps_dual, is_final, sets_flags = options

        def build_launch() -> Launch:
            assert tiling is not None
            return fused.build_fused_warp_launch(
                tiling, level, config, self._about,
                fused.WarpBuffers(
                    self._images[level_index][first_frame], self._images[level_index][1 - first_frame], flow,
                    self._build_result_plane_descriptor() if is_final else build_plane_descriptor(target, level.width),
                    self._flow_at if is_final else None, self.flags if is_final and sets_flags else None,
                    zeroes_dual, keeps_dual,
                ),
            )  # fmt: skip

        self._launch_cached_kernel(
            ("whole", level_index, first_frame, level.front, flow.data_ptr(), options), build_launch
        )
        level.front = 1 - level.front

    def _filter_flow_into_target(self, level_index: int, *, final: bool, sets_flags: bool) -> None:
        """Write the filtered flow to where the next warp, the next level or the caller reads it."""
        level, flag_tensor = self._levels[level_index], self.flags if final and sets_flags else None

        def build_median_launch() -> Launch:
            if final:
                target, target_at = self._build_result_plane_descriptor(), self._flow_at
            else:
                target, target_at = build_plane_descriptor(self._flows[level_index], level.width), None
            return self._passes.build_median_launch(
                level, self.config.median, target, target_at=target_at, flags=flag_tensor
            )

        self._launch_cached_kernel(("median", level_index, level.front, final, sets_flags), build_median_launch)
