"""The lookup's kernels cut off after each of their steps, whose differences in time table 4 of Briedis et al. shows."""

from __future__ import annotations

from functools import partial
from unittest import mock

from torch import Tensor

from benchmarks.cases.correlation import voting
from benchmarks.cases.correlation.contenders import Contender, Lookup, Problem, our_contenders
from benchmarks.harness import Unsupported
from fullfield._kernels.nvrtc import KernelSource
from fullfield.ops import _launching
from fullfield.ops.correlation.cuda import config as shapes

NAME = "fullfield"
STEPS = ("Preprocessing", "Planning", "Copies and products", "Sampling and writing outputs")
"""Steps of our kernel for Hopper. The first is layout, pooling and launches that return at once."""
_ENTRY = "const __grid_constant__ Maps maps) {\n"
_AFTER_COPIES = "// A message of the planner:"
"""Place in the source where the functions that a cut replaces are declared."""
_NO_SAMPLING = """\
static __device__ __forceinline__ void keep_products(const float *staging, out_t *at) {
    float x = staging[lane_id()];
    if (x == 1.2345e30f) *at = OutElement::pack(x);
}
#define sample_chunk(px, step, staging) keep_products(staging, px.base)
#define scattered_pixels(...)
"""
"""Products that nothing samples stay in shared memory: the compiler cannot know that nothing is stored of them."""
_NO_PRODUCTS = """\
#define barrier_expect(bar, bytes) barrier_arrive(bar)
#define copy_box(...)
#define load_parts(...)
#define wgmma_rs(...)
#define put_products(...)
#define sample_chunk(...)
#define scattered_pixels(...)
"""


def cut_source(source: KernelSource, steps: int) -> KernelSource:
    """Return the source of our lookup without its steps after ``STEPS[steps]``."""
    if steps == 0:
        return _replace_once(source, _ENTRY, f"{_ENTRY}    return;\n")
    return _replace_once(source, _AFTER_COPIES, (_NO_PRODUCTS if steps == 1 else _NO_SAMPLING) + _AFTER_COPIES)


def _replace_once(source: KernelSource, old: str, new: str) -> KernelSource:
    count = source.text.count(old)
    if count != 1:
        raise ValueError(f"expected {old!r} once in the lookup's source, got it {count} times")
    return source._replace(text=source.text.replace(old, new))


def contenders_by_step() -> list[Contender]:
    """Return the paper's kernel, reimplemented, and ours, each cut off after each of its steps."""
    (whole,) = our_contenders(["cuda"])
    last = len(STEPS) - 1
    ours = [
        Contender(f"{NAME}: {name}", partial(_prepare, number), _admit, is_cut=True)
        for number, name in enumerate(STEPS[:last])
    ]
    return [*voting.contenders_by_step(), *ours, Contender(f"{NAME}: {STEPS[last]}", whole.prepare, _admit, ours=True)]


def _admit(problem: Problem) -> None:
    (whole,) = our_contenders(["cuda"])
    whole.admit(problem)
    if not _launching.get_device_gpu_properties(problem.device).is_hopper:
        raise Unsupported("only the kernel for compute capability 9.0 is cut into steps")
    if problem.backward:
        raise Unsupported("the backward pass is not cut into steps")


def _prepare(steps: int, problem: Problem, fmap1: Tensor, fmap2: Tensor) -> Lookup:
    complete = shapes.generate_lookup_source

    def generate_cut_source(config: shapes.KernelConfig, out_code: int, channels_last: bool) -> KernelSource:
        return cut_source(complete(config, out_code, channels_last), steps)

    cut = partial(mock.patch.object, shapes, "generate_lookup_source", generate_cut_source)
    (whole,) = our_contenders(["cuda"])
    with cut():
        cut_lookup = whole.prepare(problem, fmap1, fmap2)

    def lookup(coords: Tensor) -> Tensor:
        with cut():  # the pair compiles its kernel at the first lookup
            return cut_lookup(coords)

    return lookup
