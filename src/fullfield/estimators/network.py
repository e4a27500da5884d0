"""RAFT and SEA-RAFT as estimators: the network stays on its device between calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import torch
from torch import Tensor

from fullfield import _check
from fullfield._switch import Switch
from fullfield.estimators.frames import check_pair
from fullfield.estimators.network_config import NetworkConfig, RAFTEstimatorConfig
from fullfield.estimators.origins import Origin, origin_of
from fullfield.estimators.protocol import Progress
from fullfield.estimators.registry import CASCADING, canonical
from fullfield.models.cascade import cascade_pairs, cascade_sizes
from fullfield.models.doubled import Judged, enlarged, surer
from fullfield.models.downloads import Progress as Fetching
from fullfield.models.downloads import digest
from fullfield.models.mixed import PairSize, dense_fits, lookup_request
from fullfield.models.raft.config import RAFTConfig
from fullfield.models.sea_raft.model import expected_log_scale
from fullfield.models.weights import NETWORKS, build_model
from fullfield.ops.correlation import BACKENDS
from fullfield.ops.correlation.dispatch import LOOKUPS

if TYPE_CHECKING:
    from typing import TypeAlias

    from torch import nn

    from fullfield.models.prepared import PreparedFlow, PreparedSizes
    from fullfield.models.raft import RAFT
    from fullfield.models.sea_raft import SEARAFT

    Network: TypeAlias = RAFT | SEARAFT

MIXED = "mixed"
"""As backend: the dense volume up to the largest size that fits, the best other backend above."""

_SEED = 0
_TINY = (16, 16)
_DIGITS = 12


class BothWays(NamedTuple):
    """Of a pair of frames."""

    forward: Tensor  # [B, 2, H, W]
    backward: Tensor  # [B, 2, H, W]
    log_scales: tuple[Tensor, Tensor] | None = None
    """Twice [B, H, W]: what the network itself thinks of both, the logarithm of its error in pixels; SEA-RAFT's."""


class _Found(NamedTuple):
    """One way of a pair, as :class:`Judged` where the network was asked what it thinks of its flow."""

    flow: Tensor
    log_scale: Tensor | None = None


class NetworkEstimator:
    """RAFT or SEA-RAFT on pairs of frames of any size. The network is loaded at the first call and kept.

    Weights that are not on this machine are fetched then; a file that has changed is loaded anew. The fast form is
    made once per size and kept for the sizes of the last call, those of a cascade among them. Calls from several
    threads wait for each other. An estimator can be pickled and copied; the copy loads for itself.

    Args:
        method: ``"fullfield-s"``, ``"raft"``, ``"raft-small"``, ``"sea-raft-s"``, ``"sea-raft-m"`` or ``"sea-raft-l"``.
        config: a :class:`RAFTEstimatorConfig` for RAFT, a :class:`NetworkConfig` for SEA-RAFT; by default the method's
            own weights and number of updates, exact; ``"fullfield-s"`` cascades.
        backend: of the correlation lookup, as for :class:`fullfield.nn.CorrelationPyramid`; or ``"mixed"``, for exact
            precision: dense at sizes whose volume takes up to 40 % of the GPU's free memory (2 GiB on the CPU), the
            best other one above.
    """

    def __init__(
        self, method: str = "raft", config: NetworkConfig | None = None, *, backend: str | None = None
    ) -> None:
        self.method = canonical(method)
        _check.choice(self.method, "method", NETWORKS)
        kind = RAFTEstimatorConfig if self.method.startswith("raft") else NetworkConfig
        config = kind() if config is None else config
        _check.require(type(config) is kind, "config", f"a {kind.__name__}", _check.describe(config))
        if config.cascade is None:  # without any updates, a smaller size would only be coarser
            updates = config.updates != 0 or bool(config.coarse_updates)
            config = config.replace(cascade=self.method in CASCADING and updates)
        self.config = config
        if backend is not None:
            _check.choice(backend, "backend", (*BACKENDS, MIXED))
            fits = backend != MIXED or self.config.precision == "exact"
            _check.require(fits, "backend", "another one than mixed, which is for exact precision", backend)
        self._asked = backend
        self._forget()

    def _forget(self) -> None:
        self._lock = threading.RLock()
        self._network: Network | None = None
        self._weights: Origin | None = None
        self._stamp: tuple[object, ...] = ()
        self._origin: dict[str, str | None] = {}
        self._used: str | None = None
        self._dense: dict[PairSize, bool] = {}
        self._fast: PreparedSizes | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"method": self.method, "config": self.config, "_asked": self._asked}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The configuration with its numbers filled in. Once the network is loaded, ``weights`` is the name of what
        was loaded, and ``weights_sha256`` the first 12 digits of the file's checksum (None for random weights)."""
        fine, coarse = self._updates()
        numbers = {"updates": fine, "coarse_updates": coarse if self.config.cascade else None}
        parameters = {**self.config.as_dict(), **numbers, **self._origin}
        if not self.config.double:
            del parameters["double"]  # as before there was such a thing: work that was begun then goes on
        return parameters

    @property
    def asked_backend(self) -> str | None:
        """The backend asked for; None leaves it open."""
        return self._asked

    @property
    def backend(self) -> str:
        """The correlation lookup's in the last call, at the finest level; or the one asked for."""
        return self._used or self._asked or "automatic"

    def prepare(
        self,
        device: str | torch.device = "cpu",
        size: tuple[int, int] | None = None,
        fetching: Fetching | None = None,
    ) -> None:
        """Load the network onto ``device`` and compile what it runs on now instead of at the first call.

        Args:
            device: where the frames will be.
            size: their height and width; without it the fast form waits for the first call.
            fetching: called with the bytes of the weights that have arrived and their number, while they are fetched.
        """
        place = torch.empty(0, device=_check.device(device)).device  # with its index
        with self._lock, torch.no_grad():
            network = self._ready(place, fetching)
            exact = self.config.precision == "exact"
            if exact or (place.type == "cpu" and self._fast is None):  # on a GPU the fast form runs while it is made
                blank = torch.zeros(1, 3, *_TINY, device=place, dtype=torch.float32)
                tiny = PairSize.of(blank)
                run = self._exact(network, tiny) if exact else self._prepared(network, tiny, 1)
                run(blank, blank, updates=2)  # the second lookup's kernels too
            if not exact and size is not None:
                levels = self._levels(PairSize(1, *size, place))
                if self.config.double:
                    levels.append(PairSize(1, 2 * size[0], 2 * size[1], place))
                for level in levels:
                    self._prepared(network, level, len(levels))

    def __call__(
        self, frame1: Tensor, frame2: Tensor, *, initial_flow: Tensor | None = None, progress: Progress | None = None
    ) -> Tensor:
        """Frames [B, C, H, W] to flow [B, 2, H, W]; see :class:`Estimator`."""
        return self._estimated(frame1, frame2, [initial_flow], progress)[0].flow

    def both_ways(
        self, frame1: Tensor, frame2: Tensor, *, initial_flow: Tensor | None = None, progress: Progress | None = None
    ) -> BothWays | None:
        """The flow there and back, the features of the frames computed once; see :class:`Estimator`.

        None without updates. ``initial_flow`` is for the way there.
        """
        if 0 in self._updates():
            return None
        there, back = self._estimated(frame1, frame2, [initial_flow, None], progress)
        scales = None
        if there.log_scale is not None and back.log_scale is not None:
            scales = there.log_scale[:, 0], back.log_scale[:, 0]
        return BothWays(there.flow, back.flow, scales)

    def _estimated(
        self, frame1: Tensor, frame2: Tensor, starts: Sequence[Tensor | None], progress: Progress | None
    ) -> list[_Found]:
        """The flow there, with two ``starts`` also that back, from the smallest size to the largest."""
        check_pair(frame1, frame2)
        pair = frame1.expand(-1, 3, -1, -1), frame2.expand(-1, 3, -1, -1)
        fine, coarse = self._updates()
        with self._lock, torch.no_grad(), torch.autocast(frame1.device.type, enabled=False):
            network = self._ready(frame1.device)
            pairs = cascade_pairs(*pair, [(size.height, size.width) for size in self._levels(PairSize.of(frame1))])
            own = fine * PairSize.of(pair[0]).pixels
            smaller = sum(coarse * PairSize.of(one).pixels for one, _ in pairs[1:])
            told = _Told(progress, len(starts) * (smaller + own + 4 * own * self.config.double))
            at = partial(self._at, network, told=told, sizes=len(pairs) + self.config.double)
            for frames in pairs[:0:-1]:
                starts = [way.flow for way in at(frames, coarse, starts)]
            found = [at(pair, fine, starts)]
            if not self.config.double:
                return found[0]
            if len(pairs) > 1:
                starts = [way.flow for way in found[0]]
            found.append(at((enlarged(pair[0]), enlarged(pair[1])), fine, starts))
            # RAFT's configuration refuses this. The confidence was fitted with no smaller scales than one size's.
            least = cast("SEARAFT", network).config.log_scale_min
            ways = cast("Iterator[tuple[Judged, Judged]]", zip(*found, strict=True))
            return [_Found(way.flow, way.log_scale.clamp(least)) for way in (surer(*sizes) for sizes in ways)]

    def _at(
        self,
        network: Network,
        frames: tuple[Tensor, Tensor],
        updates: int,
        starts: Sequence[Tensor | None],
        *,
        told: _Told,
        sizes: int,
    ) -> list[_Found]:
        """One size of :meth:`_estimated`; the fast form keeps ``sizes`` of them."""
        size, asked = PairSize.of(frames[0]), (*frames, updates, *starts)
        exact, both = self.config.precision == "exact", len(starts) > 1
        with told.level(network.update_block, size, len(starts) * updates):
            runner: Any = self._exact(network, size) if exact else self._prepared(network, size, sizes)
            with float32_convolutions(size.device) if exact else nullcontext():
                if isinstance(network.config, RAFTConfig) or not (both or self.config.double):
                    found = [_Found(flow) for flow in (runner.both_ways(*asked) if both else (runner(*asked),))]
                else:
                    ways = runner.both_ways_with_info(*asked) if both else (runner.flow_with_info(*asked),)
                    # Copies: the flow is part of a tensor with the mixture, which would stay as long as the flow.
                    found = [_Found(flow.clone(), expected_log_scale(info, network.config)) for flow, info in ways]
        if not exact:
            self._used = runner.backend
        return found

    def _updates(self) -> tuple[int, int]:
        """Of the finest level, and of the others."""
        fine = NETWORKS[self.method].updates if self.config.updates is None else self.config.updates
        return fine, fine if self.config.coarse_updates is None else self.config.coarse_updates

    def _levels(self, size: PairSize) -> list[PairSize]:
        """The sizes that frames of ``size`` are seen at, finest first."""
        sizes = cascade_sizes(size.height, size.width) if self.config.cascade else [(size.height, size.width)]
        return [PairSize(size.batch, height, width, size.device) for height, width in sizes]

    def _exact(self, network: Network, size: PairSize) -> Network:
        """The network, its correlation lookup by the backend chosen here for one size."""
        request = lookup_request(network.config, size)
        backend = self._asked
        if backend == MIXED:
            if size not in self._dense:
                self._dense[size] = dense_fits(request)
            backend = "dense" if self._dense[size] else None
        self._used = network.correlation = LOOKUPS.choose(backend, request)
        return network

    def _prepared(self, network: Network, size: PairSize, sizes: int) -> PreparedFlow:
        """The fast form for one size, of ``sizes`` that are kept."""
        if self._fast is None:
            from fullfield.models.prepared import PreparedSizes

            self._fast = PreparedSizes(network, self.config.precision)
        self._fast.sizes = sizes
        return self._fast.prepared(size.height, size.width, size.batch)

    def _ready(self, device: torch.device, fetching: Fetching | None = None) -> Network:
        """The network with its weights, on ``device``."""
        origin = self._weights
        if origin is None or (origin.path is not None and not origin.path.is_file()):
            origin = self._weights = origin_of(self.method, self.config.weights).fetched(fetching)
        stamp = (*origin.stamp(), device)
        if self._network is None or self._stamp != stamp:
            self._network = None  # frees the old one first
            self._fast, self._dense = None, {}
            self._network = self._loaded(origin).to(device)
            self._stamp = stamp
        return self._network

    def _loaded(self, origin: Origin) -> Network:
        shape = NETWORKS[self.method]
        if isinstance(shape, RAFTConfig) and isinstance(self.config, RAFTEstimatorConfig):
            shape = shape.replace(padding=self.config.padding)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(_SEED)
            network = build_model(shape, self._asked)
        checksum = None
        if origin.path is not None:
            network.load_checkpoint(origin.path)
            checksum = digest(origin.path)[:_DIGITS]
        self._origin = {"weights": origin.name, "weights_sha256": checksum}
        return network


def float32_convolutions(device: torch.device) -> AbstractContextManager[None]:
    """Inside, cuDNN multiplies float32 as float32: PyTorch's default there is TF32, with 10 bits of mantissa.

    The switch is the process's: it holds for every thread until the last one has left, and is then put back.
    """
    return _FLOAT32 if device.type == "cuda" else nullcontext()


def _float32() -> Callable[[], None]:
    """Switch, and return what switches back."""
    cudnn: Any = torch.backends.cudnn
    try:
        name, before, owner = "allow_tf32", cudnn.allow_tf32, cudnn
    except RuntimeError:  # somebody has set the switches that PyTorch 2.9 brought; the two kinds do not mix
        name, before, owner = "fp32_precision", cudnn.conv.fp32_precision, cudnn.conv
    setattr(owner, name, False if name == "allow_tf32" else "ieee")
    return lambda: setattr(owner, name, before)


_FLOAT32 = Switch(_float32)


class _Told:
    """Tells ``progress`` of every level, and of every update where those can be heard of."""

    def __init__(self, progress: Progress | None, work: int) -> None:
        self._progress = progress
        self._work = max(work, 1)
        self._done = 0

    @contextmanager
    def level(self, block: nn.Module, size: PairSize, updates: int) -> Iterator[None]:
        """Around the work at one size; every run of ``block`` is an update."""
        if self._progress is None:
            yield
            return
        progress, done, where = self._progress, self._done, f"{size.width}x{size.height}"
        progress(done / self._work, where)

        def after(*_: object) -> None:
            self._done += size.pixels
            progress(min(self._done / self._work, 1.0), where)

        hook = block.register_forward_hook(after)
        try:
            yield
        finally:
            hook.remove()
        self._done = done + updates * size.pixels
        progress(self._done / self._work, where)
