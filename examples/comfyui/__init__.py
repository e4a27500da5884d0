"""Nodes for ComfyUI: optical flow between two images, its picture, and warping along it.

See docs/comfyui.md for the installation. Images are ComfyUI's: float ``[B, H, W, 3]`` from 0 to 1. Flow is
``[B, 2, H, W]`` in pixels of the first image, x right and y down.
"""

import torch

import fullfield
from fullfield.sequences import warp_image
from fullfield.viz import flow_to_image

METHODS = ["auto", "fullfield-m", "fullfield-s", "tvl1"]


class FlowBetween:
    """Node that estimates the flow from each first image to its second one."""

    @classmethod
    def INPUT_TYPES(cls):
        return {
            "required": {
                "first": ("IMAGE",),
                "second": ("IMAGE",),
                "method": (METHODS,),
                "refine": ("BOOLEAN", {"default": False}),
            }
        }

    RETURN_TYPES = ("FLOW",)
    FUNCTION = "run"
    CATEGORY = "fullfield"

    def run(self, first, second, method, refine):
        if len(first) != len(second):
            raise ValueError(f"first and second: expected equal numbers of images, got {len(first)} and {len(second)}")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        pairs = zip(first.movedim(-1, 1), second.movedim(-1, 1), strict=True)
        flows = [fullfield.estimate(a, b, method, device=device, refine=refine).flow.cpu() for a, b in pairs]
        return (torch.stack(flows),)


class FlowPicture:
    """Node that draws flow in colours; the scale ends at ``max_motion`` px, with 0 at each flow's longest motion."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"flow": ("FLOW",), "max_motion": ("FLOAT", {"default": 0.0, "min": 0.0})}}

    RETURN_TYPES = ("IMAGE",)
    FUNCTION = "run"
    CATEGORY = "fullfield"

    def run(self, flow, max_motion):
        drawn = [flow_to_image(each, max_motion=max_motion or None) for each in flow]
        return (torch.stack(drawn).movedim(1, -1).float() / 255,)


class WarpBack:
    """Node that warps the second image onto the first; its mask has the pixels whose vectors stay inside."""

    @classmethod
    def INPUT_TYPES(cls):
        return {"required": {"second": ("IMAGE",), "flow": ("FLOW",)}}

    RETURN_TYPES = ("IMAGE", "MASK")
    FUNCTION = "run"
    CATEGORY = "fullfield"

    def run(self, second, flow):
        done = [warp_image(image.cpu(), each) for image, each in zip(second.movedim(-1, 1), flow, strict=True)]
        return torch.stack([image for image, _ in done]).movedim(1, -1), torch.stack([mask for _, mask in done]).float()


NODE_CLASS_MAPPINGS = {"FullfieldFlow": FlowBetween, "FullfieldPicture": FlowPicture, "FullfieldWarp": WarpBack}
NODE_DISPLAY_NAME_MAPPINGS = {
    "FullfieldFlow": "Flow (fullfield)",
    "FullfieldPicture": "Flow picture (fullfield)",
    "FullfieldWarp": "Warp back (fullfield)",
}
