"""Residual blocks on native points."""

from __future__ import annotations

from torch import Tensor, nn

from fullfield.models.pointcnnpp.pyramid import PointPyramid
from fullfield.nn.points import PointConv, PointNorm


class ConvNorm(nn.Module):
    """Convolution from level to level, then normalisation, a residual added where one is given, a ReLU where asked."""

    def __init__(self, inputs: int, outputs: int, step: tuple[int, int, int], norm: str) -> None:
        super().__init__()
        self.step = step
        self.conv = PointConv(inputs, outputs, step[2], bias=False)
        self.norm = PointNorm(outputs, norm)

    def forward(
        self, features: Tensor, pyramid: PointPyramid, residual: Tensor | None = None, *, relu: bool = False
    ) -> Tensor:
        geometry, sizes = pyramid.geometries[self.step], pyramid.sizes[self.step[1]]
        return self.norm.of(self.conv, features, geometry, sizes, residual, relu=relu)


class LinearNorm(nn.Module):
    """The same for a kernel of one cell that sees only its centre."""

    def __init__(self, inputs: int, outputs: int, level: int, norm: str) -> None:
        super().__init__()
        self.level = level
        self.linear = nn.Linear(inputs, outputs, bias=False)
        self.norm = PointNorm(outputs, norm)

    def forward(
        self, features: Tensor, pyramid: PointPyramid, residual: Tensor | None = None, *, relu: bool = False
    ) -> Tensor:
        out: Tensor = self.norm(self.linear(features), pyramid.sizes[self.level], residual, relu=relu)
        return out


class Residual(nn.Module):
    """x + f(x), and a ReLU; f is two 3³ convolutions ("basic") or 1, 3³, 1 with a quarter of the outputs inside.

    A step to the next level is the first 3³ convolution's; the shortcut then follows the points that are kept.
    """

    def __init__(self, inputs: int, outputs: int, source: int, target: int, norm: str, kind: str = "basic") -> None:
        super().__init__()
        self.source, self.target = source, target
        inner = outputs if kind == "basic" else outputs // 4
        step = (source, target, 3)
        self.first = ConvNorm(inputs, inner, step, norm) if kind == "basic" else LinearNorm(inputs, inner, source, norm)
        self.middle = None if kind == "basic" else ConvNorm(inner, inner, step, norm)
        within = (target, target, 3)
        self.last = (
            ConvNorm(inner, outputs, within, norm) if kind == "basic" else LinearNorm(inner, outputs, target, norm)
        )
        changes = inputs != outputs or source != target
        self.shortcut = LinearNorm(inputs, outputs, target, norm) if changes else None

    def forward(self, features: Tensor, pyramid: PointPyramid) -> Tensor:
        inner = self.first(features, pyramid, relu=True)
        if self.middle is not None:
            inner = self.middle(inner, pyramid, relu=True)
        own = features if self.source == self.target else features.index_select(0, pyramid.kept[self.source])
        own = own if self.shortcut is None else self.shortcut(own, pyramid)
        out: Tensor = self.last(inner, pyramid, own, relu=True)
        return out
