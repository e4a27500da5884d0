"""The lookup in plain operators: the values of the reference, and no operators of ours in its graph."""

from __future__ import annotations

import pytest
import torch

from fullfield.ops.correlation import correlation_lookup, correlation_pyramid
from fullfield.ops.correlation.traceable import FORMS, build_traceable_state, compute_traceable_lookup


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(("size", "levels", "radius"), [((9, 13), 4, 4), ((16, 8), 4, 3), ((3, 5), 3, 2)])
def test_traceable_lookup_equals_reference(form: str, size: tuple[int, int], levels: int, radius: int) -> None:
    generator = torch.Generator().manual_seed(0)
    fmap1, fmap2 = torch.randn(2, 2, 6, *size, generator=generator)
    coords = 12 * torch.randn(2, 2, *size, generator=generator) + 4
    coords[0, 0, 0, :3] = torch.tensor([float("nan"), float("inf"), -1e30])
    coords[1, :, 1, 1] = 2.0
    expected = correlation_lookup(fmap1, correlation_pyramid(fmap2, levels), coords, radius, backend="reference")
    got = compute_traceable_lookup(build_traceable_state(fmap1, fmap2, levels, form), coords, radius, form)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert expected.abs().max() > 0.5


@pytest.mark.parametrize("form", FORMS)
def test_traceable_lookup_exports_symbolic_standard_operators(form: str) -> None:
    class Looked(torch.nn.Module):
        def forward(self, fmap1: torch.Tensor, fmap2: torch.Tensor, coords: torch.Tensor) -> torch.Tensor:
            return compute_traceable_lookup(build_traceable_state(fmap1, fmap2, 2, form), coords, 2, form)

    def inputs(height: int, width: int) -> tuple[torch.Tensor, ...]:
        return torch.randn(1, 4, height, width), torch.randn(1, 4, height, width), 5 * torch.rand(1, 2, height, width)

    sides = {2: torch.export.Dim("height", min=4), 3: torch.export.Dim("width", min=4)}
    program = torch.export.export(
        Looked(), inputs(6, 7), dynamic_shapes=dict.fromkeys(("fmap1", "fmap2", "coords"), sides)
    )
    assert not [n for n in program.graph.nodes if "fullfield" in str(n.target)]
    other = inputs(9, 4)
    torch.testing.assert_close(program.module()(*other), Looked()(*other))
