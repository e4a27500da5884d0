"""The public functions: errors, the registered operator, reuse, threads and worker processes."""

from __future__ import annotations

import copy
import os
import signal
import textwrap
import threading
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

from fullfield import InputError
from fullfield._config import Config
from fullfield.ops.tvl1 import TVL1Config, TVL1Solver, explain_backends, tvl1
from fullfield.ops.tvl1.config import PRESETS, RefinementConfig
from fullfield.testing import sample_textured_scene

QUICK = TVL1Config(warps=2, iterations=5, scale_factor=0.5)


def frames(batch: int = 1, channels: int = 1, height: int = 40, width: int = 56, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    texture = torch.rand(batch, channels, height + 8, width + 8, generator=generator)
    smooth = torch.nn.functional.avg_pool2d(texture, 5, 1, 2)
    return [smooth[:, :, 4:-4, 4:-4].contiguous(), smooth[:, :, 4:-4, 3:-5].contiguous()]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"tau": 0.3}, r"tau: expected a number > 0 and <= 0.25, got float 0.3"),
        ({"lambda_": -1.0}, "lambda_: expected a number >= 1e-06"),
        ({"warps": 0}, "warps: expected an integer >= 1"),
        ({"warps": 10**18}, "warps: expected an integer >= 1 and <= 10000"),
        ({"iterations": 2.5}, "iterations: expected an integer"),
        ({"median": 4}, "median: expected one of 0, 3, 5"),
        ({"borders": "wrap"}, "borders: expected one of adjoint, clamp, got 'wrap'"),
        ({"scale_factor": 1.0}, "scale_factor: expected a number"),
        ({"theta": float("nan")}, "theta: expected a number"),
        ({"scales": 0}, "scales: expected an integer >= 1"),
        ({"gradient_blend": True}, "gradient_blend: expected a number"),
        ({"precision": "half"}, "precision: expected one of float32, float16, got 'half'"),
    ],
)
def test_tvl1_config_refuses_bad_parameters(change: dict[str, object], message: str) -> None:
    with pytest.raises(InputError, match=message):
        TVL1Config().replace(**change)


LIMITS: dict[type[Config], dict[str, tuple[float, float]]] = {
    TVL1Config: {
        "lambda_": (1e-6, 1e6), "theta": (1e-6, 1e6), "scale_factor": (0.1, 0.95), "warps": (1, 10_000),
        "iterations": (1, 1_000_000), "gradient_blend": (0, 1),
    },
    RefinementConfig: {
        **dict.fromkeys(("lambda_", "coupling", "consistent_coupling", "edges", "trust", "filter_threshold"), (0, 1e6)),
        **dict.fromkeys(("epsilon", "consistent_distance", "filter_colour", "filter_residual"), (1e-3, 1e6)),
        **dict.fromkeys(("rounds", "passes", "warps", "iterations"), (1, 10_000)),
        "blur": (0, 10), "step": (1e-4, 1e4), "filter_reach": (1, 1e6), "least_fall": (0, 1), "passes_fall": (0, 1),
    },
}  # fmt: skip


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind, names in LIMITS.items() for name in names])
def test_tvl1_config_accepts_limits_of_parameters(kind: type[Config], name: str) -> None:
    low, high = LIMITS[kind][name]
    assert [getattr(kind(**{name: value}), name) for value in (low, high)] == [low, high]
    step = 1 if isinstance(low, int) and isinstance(high, int) and high > 10 else 1e-9
    for beyond in (low - step, high + max(step, high * 1e-9)):
        with pytest.raises(InputError, match=f"^{name}: expected"):
            kind(**{name: beyond})


def test_tvl1_refuses_unknown_names() -> None:
    with pytest.raises(InputError, match="preset: expected one of default, realtime, fast, paper"):
        TVL1Config.from_preset("best")
    assert TVL1Config.from_preset("default") == TVL1Config() == PRESETS["default"]


def test_tvl1_solver_refuses_bad_tensors() -> None:
    first, second = frames()
    solver = TVL1Solver(40, 56, QUICK)
    nan = first.clone()
    nan[0, 0, 3, 4] = float("nan")
    inf = second.clone()
    inf[0, 0, 3, 4] = float("inf")
    for arguments, message in [
        ((first[0], second), r"frame1: expected shape \[B, C, 40, 56\]"),
        ((first, second[..., 1:]), r"frame2: expected shape \[B, C, 40, 56\], got float32 tensor \[1, 1, 40, 55\]"),
        ((first.byte(), second), "frame1: expected a floating dtype"),
        ((first.expand(1, 2, 40, 56), second), "frame1: expected 1 or 3 channels"),
        ((first, second.expand(2, 1, 40, 56)), r"frame2: expected shape \[1, 1, 40, 56\] like frame1"),
        ((nan, second), "frame1: expected finite values"),
        ((first, inf), "frame2: expected finite values"),
        (("a.png", second), "frame1: expected a tensor"),
    ]:
        with pytest.raises(InputError, match=message):
            solver(*arguments)
    with pytest.raises(InputError, match=r"initial_flow: expected shape \[1, 2, 40, 56\]"):
        solver(first, second, initial_flow=torch.zeros(2, 40, 56))
    with pytest.raises(InputError, match="frames: expected at least 2 pixels, got 1×1"):
        TVL1Solver(1, 1)


def test_tvl1_explicit_backend_never_falls_back() -> None:
    with pytest.raises(
        InputError, match=r"backend: 'cpu' cannot serve .*; cpu: computes in float32 only.*reference: can"
    ):
        TVL1Solver(40, 56, dtype=torch.float64, backend="cpu")
    with pytest.raises(InputError, match="backend: expected one of cuda, cpu, reference, got"):
        TVL1Solver(40, 56, backend="gpu")
    assert TVL1Solver(40, 56, dtype=torch.float64).backend == "reference"
    assert TVL1Solver(40, 56).backend == "cpu"
    assert dict(explain_backends("cuda"))["cpu"] == "runs on cpu only, got cuda"
    assert dict(explain_backends("cpu"))["cuda"] == "runs on NVIDIA GPUs, the tensors are on cpu"


def test_tvl1_refuses_cuda_only_settings_elsewhere() -> None:
    config, words = QUICK.replace(precision="float16"), "precision float16"
    assert dict(explain_backends("cpu", config=config))["cpu"] == f"has no {words}"
    for backend in ("cpu", "reference"):
        with pytest.raises(InputError, match=rf"cannot serve this request .*reference: has no {words}"):
            TVL1Solver(40, 56, config, backend=backend)
    with pytest.raises(InputError, match=r"^precision: expected 'float32', or an NVIDIA GPU .* got 'float16' on cpu$"):
        TVL1Solver(40, 56, config)


@pytest.mark.parametrize(
    ("dtype", "channels"), [(torch.float16, 1), (torch.bfloat16, 3), (torch.float32, 3), (torch.float64, 1)]
)
def test_tvl1_accepts_dtypes_batches_and_strides(dtype: torch.dtype, channels: int) -> None:
    first, second = (f.to(dtype) for f in frames(batch=3, channels=channels))
    flow = tvl1(first, second, QUICK)
    assert flow.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    assert flow.shape == (3, 2, 40, 56)
    one_by_one = torch.cat([tvl1(first[i : i + 1], second[i : i + 1], QUICK) for i in range(3)])
    strided = [
        f.to(memory_format=torch.channels_last).transpose(2, 3).contiguous().transpose(2, 3) for f in (first, second)
    ]
    allowed = 0.0
    if dtype == torch.float64:
        # The reference: PyTorch's products may sum in another order where strides differ. What the orders and the
        # rounding of float32 do to this flow, float64's do in proportion.
        rounded = tvl1(first.float(), second.float(), QUICK, backend="reference")
        finer = torch.finfo(torch.float64).eps / torch.finfo(torch.float32).eps
        allowed = 4 * finer * float((rounded - flow).abs().max())
        assert allowed < 1e-9
    for other in (one_by_one, tvl1(*strided, QUICK)):
        assert float((other - flow).abs().max()) <= allowed
    assert tvl1(first[:0], second[:0], QUICK).shape == (0, 2, 40, 56)


def test_tvl1_converts_colour_to_rec601_grey() -> None:
    first, second = frames(channels=3)
    luma = torch.tensor([0.299, 0.587, 0.114]).view(1, 3, 1, 1)
    grey = [(f * luma).sum(1, keepdim=True) for f in (first, second)]
    assert torch.allclose(tvl1(first, second, QUICK), tvl1(*grey, QUICK), atol=1e-3)


def test_tvl1_solver_is_independent_of_previous_pair() -> None:
    first, second = frames()
    others = frames(seed=5)
    for backend in ("cpu", "reference"):
        solver = TVL1Solver(40, 56, QUICK, backend=backend)
        fresh = solver(first, second)
        kept = fresh.clone()
        solver(*others)
        assert torch.equal(solver(first, second), kept)
        assert torch.equal(fresh, kept), "a result must not be overwritten by later calls"


def test_tvl1_solver_ignores_initial_buffer_contents() -> None:
    first, second = frames()
    solver = TVL1Solver(40, 56, QUICK)
    clean = solver(first, second)
    assert solver.backend == "cpu"
    for buffer in (solver._solver._state, solver._solver._packed, *solver._solver._pyramid1, *solver._solver._pyramid2):
        buffer.fill(float("nan"))
    assert torch.equal(solver(first, second), clean)


def test_tvl1_solver_progress_rises_to_one() -> None:
    seen: list[tuple[float, str]] = []
    for backend in ("cpu", "reference"):
        seen.clear()
        solver = TVL1Solver(40, 56, QUICK, backend=backend)
        solver(*frames(batch=2), progress=lambda fraction, where: seen.append((fraction, where)))
        fractions = [fraction for fraction, _ in seen]
        assert fractions == sorted(fractions)
        assert fractions[-1] == pytest.approx(1.0)
        assert "pair 2 of 2, level 2 of 2, 56×40" in seen[-1][1]
        assert len(seen) == 2 * 2 * QUICK.warps


def test_tvl1_operator_passes_opcheck() -> None:
    first, second = frames()
    from fullfield.ops.tvl1 import api  # noqa: F401 - registers the operator

    start = torch.zeros(1, 2, 40, 56)
    for arguments in ((first, second, None, None), (first, second, start, "reference")):
        torch.library.opcheck(torch.ops.fullfield.tvl1.default, arguments, QUICK.as_dict())


def test_tvl1_compiles_without_graph_break() -> None:
    first, second = frames()
    compiled = torch.compile(lambda a, b: tvl1(a, b, QUICK) * 2, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(first, second), tvl1(first, second, QUICK) * 2)


def test_tvl1_refuses_backward() -> None:
    first, second = frames()
    flow = tvl1(first.requires_grad_(), second, QUICK)
    with pytest.raises(RuntimeError, match="no autograd formula"):
        flow.sum().backward()


def test_tvl1_solver_from_threads_equals_serial() -> None:
    pairs = [frames(seed=seed) for seed in range(6)]
    expected = [tvl1(*pair, QUICK) for pair in pairs]
    shared = TVL1Solver(40, 56, QUICK)
    wrong: list[int] = []

    def work(index: int) -> None:
        for _ in range(10):
            if not torch.equal(shared(*pairs[index]), expected[index]):
                wrong.append(index)
            if not torch.equal(tvl1(*pairs[index], QUICK), expected[index]):
                wrong.append(index)

    workers = [threading.Thread(target=work, args=(index,)) for index in range(6)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert not wrong


class Pairs(Dataset):  # type: ignore[type-arg]
    """Flow by the function, and by a used solver, which has to travel to the workers."""

    def __init__(self) -> None:
        self.solver = TVL1Solver(40, 56, QUICK)
        self.solver(*frames())

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        pair = frames(seed=index)
        return {"function": tvl1(*pair, QUICK)[0], "solver": self.solver(*pair)[0]}


@pytest.mark.parametrize(
    ("start", "workers"),
    [("fork", 2), pytest.param("spawn", 1, marks=pytest.mark.long)],  # a spawned one imports PyTorch
)
def test_tvl1_works_in_dataloader_workers(start: str, workers: int) -> None:
    pairs = Pairs()
    expected = [pairs[index] for index in range(4)]
    found = list(DataLoader(pairs, batch_size=2, num_workers=workers, multiprocessing_context=start))
    for way in ("function", "solver"):
        assert torch.equal(torch.cat([batch[way] for batch in found]), torch.stack([pair[way] for pair in expected]))


def test_tvl1_memory_is_linear(run_measured_script: Callable[..., str]) -> None:
    script = """
        import torch
        from fullfield.ops.tvl1 import TVL1Config, TVL1Solver
        from peak_memory import PeakMemory

        config = TVL1Config(warps=1, iterations=1)
        TVL1Solver(64, 64, config)(torch.rand(1, 1, 64, 64), torch.rand(1, 1, 64, 64))
        height, width = 1000, 1250
        with PeakMemory() as memory:
            frames = torch.rand(2, 1, 1, height, width)
            TVL1Solver(height, width, config)(*frames)
        print(memory.growth_mib * 2**20 / (height * width * 4))
    """
    planes = float(run_measured_script(textwrap.dedent(script)))
    # 15 of state, 4 packed, 2 × 5.26 of pyramids; then the frames, two copies of the flow, and its parts.
    assert 29 < planes < 40


def test_tvl1_solver_copies_are_independent() -> None:
    solver = TVL1Solver(40, 56, QUICK, backend="reference")
    twin = copy.deepcopy(solver)
    assert (twin.config, twin.backend, twin.height, twin.width) == (QUICK, "reference", 40, 56)
    assert torch.equal(twin(*frames()), solver(*frames()))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_tvl1_solver_works_after_fork_during_solve() -> None:
    solver = TVL1Solver(40, 56, QUICK)
    expected = solver(*frames())
    with solver._lock:  # as a thread of the parent would hold it
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            torch.set_num_threads(1)  # as DataLoader does: OpenMP's own threads do not survive a fork
            os._exit(0 if torch.equal(solver(*frames()), expected) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_tvl1_refuses_extreme_values() -> None:
    first, second = frames()
    with pytest.raises(InputError, match=r"frame1: expected values up to 1e\+06 \(0 ... 1 is usual\), got 1e\+30"):
        tvl1(first * 0 + 1e30, second, QUICK)
    for change in ({"lambda_": 1e39}, {"theta": 1e-39}, {"theta": 1e38}):
        with pytest.raises(InputError, match=f"{next(iter(change))}: expected a number"):
            QUICK.replace(**change)
    for change in ({"lambda_": 1e6, "theta": 1e-6}, {"lambda_": 1e6, "theta": 1e6}, {"lambda_": 1e-6, "theta": 1e6}):
        flow = tvl1(first, second, QUICK.replace(**change))
        assert torch.isfinite(flow).all()


def test_tvl1_config_accepts_numpy_scalars() -> None:
    config = TVL1Config(lambda_=np.float32(0.5), warps=np.int64(3), gradient_blend=0)
    assert (config.lambda_, config.warps, config.gradient_blend) == (0.5, 3, 0.0)
    assert [type(v) for v in (config.lambda_, config.warps, config.gradient_blend)] == [float, int, float]
    with pytest.raises(InputError, match=r"tau: expected a number .* got float32 0\.5"):
        TVL1Config(tau=np.float32(0.5))


def test_tvl1_refuses_bad_arguments() -> None:
    first, second = frames()
    with pytest.raises(InputError, match="config: expected a TVL1Config, got str 'fast'"):
        tvl1(first, second, "fast")  # type: ignore[arg-type]
    with pytest.raises(InputError, match=r"frame1: expected shape \[B, C, H, W\], got float32 tensor \[32\]"):
        tvl1(torch.rand(32), second)
    with pytest.raises(InputError, match=r"height: expected an integer >= 1 and <= 1\.67772e"):
        TVL1Solver(2**24, 4)


def test_tvl1_reference_is_independent_of_threads_and_autocast() -> None:
    """Its products of matrices were summed in an order of MKL's choice, and under autocast in bfloat16."""
    pair = frames(height=260, width=270)
    config = QUICK.replace(scale_factor=0.9, warps=1, iterations=10, scales=3)
    threads, found = torch.get_num_threads(), []
    start = torch.ones(1, 2, 260, 270) / 3
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            found.append(tvl1(*pair, config, initial_flow=start, backend="reference"))
    finally:
        torch.set_num_threads(threads)
    with torch.autocast("cpu", torch.bfloat16):
        found.append(tvl1(*pair, config, initial_flow=start, backend="reference"))
    assert all(torch.equal(flow, found[0]) for flow in found)


@pytest.mark.long
def test_tvl1_cpu_differs_only_where_rounding_matters() -> None:
    """The scene of 44 where ``cpu`` is farthest from it: 0.03 px, at one pixel."""
    scene, config = sample_textured_scene(44, 52, seed=4), TVL1Config(warps=5, iterations=10)
    first, second = scene.frame1[None], scene.frame2[None]
    exact = tvl1(first, second, config, backend="reference")
    generator, moved = torch.Generator().manual_seed(0), torch.zeros(44, 52)
    for _ in range(8):
        rounded = first * (1 + 6e-8 * (2 * torch.rand(first.shape, generator=generator) - 1))
        flow = tvl1(rounded, second, config, backend="reference")
        moved = moved.maximum((flow - exact).norm(dim=1)[0])
    apart = (tvl1(first, second, config, backend="cpu") - exact).norm(dim=1)[0]
    assert apart.max() < 3 * moved.max()
    assert apart[moved < 1e-3].max() < 1e-2
