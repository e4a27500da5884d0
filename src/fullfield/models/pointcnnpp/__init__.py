"""PointCNN++ backbones (arXiv 2511.23227): residual networks and a U-Net of convolutions on native points."""

from typing import TYPE_CHECKING

from fullfield._lazy import create_lazy_all_getattr_and_dir

if TYPE_CHECKING:
    from fullfield.models.pointcnnpp.config import PointResNetConfig as PointResNetConfig
    from fullfield.models.pointcnnpp.config import PointUNetConfig as PointUNetConfig
    from fullfield.models.pointcnnpp.networks import PointPyramid as PointPyramid
    from fullfield.models.pointcnnpp.networks import PointResNet as PointResNet
    from fullfield.models.pointcnnpp.networks import PointUNet as PointUNet

__all__, __getattr__, __dir__ = create_lazy_all_getattr_and_dir(
    __name__,
    {
        "config": "PointResNetConfig PointUNetConfig",
        "networks": "PointPyramid PointResNet PointUNet",
    },
)
