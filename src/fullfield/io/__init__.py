"""Frames and point clouds in, flow and clouds out: files of the field's formats as tensors.

Names are loaded on first use; docs/formats.md says what each format holds and which defaults apply.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fullfield.io.files import atomic_path as atomic_path
    from fullfield.io.flow import FlowData as FlowData
    from fullfield.io.flow import FlowRangeError as FlowRangeError
    from fullfield.io.flow import flow_window as flow_window
    from fullfield.io.flow import read_flow as read_flow
    from fullfield.io.flow import write_flow as write_flow
    from fullfield.io.flow import write_st_map as write_st_map
    from fullfield.io.image import frame_window as frame_window
    from fullfield.io.image import read_frame as read_frame
    from fullfield.io.image import write_image as write_image
    from fullfield.io.metadata import read_metadata as read_metadata
    from fullfield.io.names import EXR_COMPRESSIONS as EXR_COMPRESSIONS
    from fullfield.io.names import FLOW_SUFFIXES as FLOW_SUFFIXES
    from fullfield.io.names import FLOW_WRITE_SUFFIXES as FLOW_WRITE_SUFFIXES
    from fullfield.io.names import FRAME_SUFFIXES as FRAME_SUFFIXES
    from fullfield.io.names import IMAGE_WRITE_SUFFIXES as IMAGE_WRITE_SUFFIXES
    from fullfield.io.names import POINT_SUFFIXES as POINT_SUFFIXES
    from fullfield.io.names import POINT_WRITE_SUFFIXES as POINT_WRITE_SUFFIXES
    from fullfield.io.names import TRANSFERS as TRANSFERS
    from fullfield.io.names import VIDEO_WRITE_SUFFIXES as VIDEO_WRITE_SUFFIXES
    from fullfield.io.point_formats import PointCloud as PointCloud
    from fullfield.io.pointcloud import as_point_cloud as as_point_cloud
    from fullfield.io.pointcloud import read_point_cloud as read_point_cloud
    from fullfield.io.pointcloud import transformed as transformed
    from fullfield.io.pointcloud import write_point_cloud as write_point_cloud
    from fullfield.io.vectors import read_vectors as read_vectors
    from fullfield.io.vectors import write_vectors as write_vectors
    from fullfield.io.video import VideoFrame as VideoFrame
    from fullfield.io.video import VideoSource as VideoSource
    from fullfield.io.video import VideoWriter as VideoWriter
    from fullfield.io.video import open_video as open_video
    from fullfield.io.windows import FrameWindow as FrameWindow

_HOME = {
    "EXR_COMPRESSIONS": "names",
    "FLOW_SUFFIXES": "names",
    "FLOW_WRITE_SUFFIXES": "names",
    "FRAME_SUFFIXES": "names",
    "FlowData": "flow",
    "FlowRangeError": "flow",
    "FrameWindow": "windows",
    "IMAGE_WRITE_SUFFIXES": "names",
    "POINT_SUFFIXES": "names",
    "POINT_WRITE_SUFFIXES": "names",
    "PointCloud": "point_formats",
    "TRANSFERS": "names",
    "VIDEO_WRITE_SUFFIXES": "names",
    "VideoFrame": "video",
    "VideoSource": "video",
    "VideoWriter": "video",
    "as_point_cloud": "pointcloud",
    "atomic_path": "files",
    "flow_window": "flow",
    "frame_window": "image",
    "open_video": "video",
    "read_flow": "flow",
    "read_frame": "image",
    "read_metadata": "metadata",
    "read_point_cloud": "pointcloud",
    "read_vectors": "vectors",
    "transformed": "pointcloud",
    "write_flow": "flow",
    "write_image": "image",
    "write_point_cloud": "pointcloud",
    "write_st_map": "flow",
    "write_vectors": "vectors",
}

__all__ = [
    "EXR_COMPRESSIONS",
    "FLOW_SUFFIXES",
    "FLOW_WRITE_SUFFIXES",
    "FRAME_SUFFIXES",
    "IMAGE_WRITE_SUFFIXES",
    "POINT_SUFFIXES",
    "POINT_WRITE_SUFFIXES",
    "TRANSFERS",
    "VIDEO_WRITE_SUFFIXES",
    "FlowData",
    "FlowRangeError",
    "FrameWindow",
    "PointCloud",
    "VideoFrame",
    "VideoSource",
    "VideoWriter",
    "as_point_cloud",
    "atomic_path",
    "flow_window",
    "frame_window",
    "open_video",
    "read_flow",
    "read_frame",
    "read_metadata",
    "read_point_cloud",
    "read_vectors",
    "transformed",
    "write_flow",
    "write_image",
    "write_point_cloud",
    "write_st_map",
    "write_vectors",
]


def __getattr__(name: str) -> object:
    if name in _HOME:
        value = getattr(import_module(f"fullfield.io.{_HOME[name]}"), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'fullfield.io' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
