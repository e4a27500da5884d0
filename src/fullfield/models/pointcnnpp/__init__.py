"""PointCNN++ backbones (arXiv 2511.23227): residual networks and a U-Net of convolutions on native points."""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fullfield.models.pointcnnpp.config import PointResNetConfig as PointResNetConfig
    from fullfield.models.pointcnnpp.config import PointUNetConfig as PointUNetConfig
    from fullfield.models.pointcnnpp.pyramid import PointPyramid as PointPyramid
    from fullfield.models.pointcnnpp.resnet import PointResNet as PointResNet
    from fullfield.models.pointcnnpp.unet import PointUNet as PointUNet

_HOME = {
    "PointPyramid": "fullfield.models.pointcnnpp.pyramid",
    "PointResNet": "fullfield.models.pointcnnpp.resnet",
    "PointResNetConfig": "fullfield.models.pointcnnpp.config",
    "PointUNet": "fullfield.models.pointcnnpp.unet",
    "PointUNetConfig": "fullfield.models.pointcnnpp.config",
}

__all__ = ["PointPyramid", "PointResNet", "PointResNetConfig", "PointUNet", "PointUNetConfig"]


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fullfield.models.pointcnnpp' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
