"""Frames and point clouds in, flow and clouds out: files of the field's formats as tensors.

Names are loaded on first use; docs/formats.md says what each format holds and which defaults apply.
"""

from typing import TYPE_CHECKING

from fullfield._lazy import lazy

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
    from fullfield.io.names import EXR_COMPRESSIONS as EXR_COMPRESSIONS
    from fullfield.io.names import FLOW_SUFFIXES as FLOW_SUFFIXES
    from fullfield.io.names import FRAME_SUFFIXES as FRAME_SUFFIXES
    from fullfield.io.names import IMAGE_WRITE_SUFFIXES as IMAGE_WRITE_SUFFIXES
    from fullfield.io.names import TRANSFERS as TRANSFERS
    from fullfield.io.oiio import read_metadata as read_metadata
    from fullfield.io.point_formats import PointCloud as PointCloud
    from fullfield.io.pointcloud import read_point_cloud as read_point_cloud
    from fullfield.io.pointcloud import transformed as transformed
    from fullfield.io.pointcloud import write_point_cloud as write_point_cloud
    from fullfield.io.resizing import resize_flow as resize_flow
    from fullfield.io.vectors import VectorReading as VectorReading
    from fullfield.io.vectors import read_vectors as read_vectors
    from fullfield.io.vectors import write_vectors as write_vectors
    from fullfield.io.video import VideoSource as VideoSource
    from fullfield.io.video import VideoWriter as VideoWriter
    from fullfield.io.video import open_video as open_video
    from fullfield.io.windows import FrameWindow as FrameWindow

__all__, __getattr__, __dir__ = lazy(
    __name__,
    {
        "files": "atomic_path",
        "flow": "FlowData FlowRangeError flow_window read_flow write_flow write_st_map",
        "image": "frame_window read_frame write_image",
        "names": "EXR_COMPRESSIONS FLOW_SUFFIXES FRAME_SUFFIXES IMAGE_WRITE_SUFFIXES TRANSFERS",
        "oiio": "read_metadata",
        "point_formats": "PointCloud",
        "pointcloud": "read_point_cloud transformed write_point_cloud",
        "resizing": "resize_flow",
        "vectors": "VectorReading read_vectors write_vectors",
        "video": "VideoSource VideoWriter open_video",
        "windows": "FrameWindow",
    },
)
