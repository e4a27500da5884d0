"""
Pairs for training
==================

Generate frames with known flow and occlusion; nothing is downloaded.
"""

from fullfield.io import write_image
from fullfield.training.flow.pairs import PairGenerator
from fullfield.training.flow.pictures import create_procedural_picture_pack
from fullfield.viz import draw_sheet, draw_wheel_legend, flow_to_image, frame_to_image, measure_max_motion

# A pack of photos: load_or_create_picture_pack("pack.zip").
pictures = create_procedural_picture_pack(20, size=128, seed=1, shape_count=40)
pairs = PairGenerator((64, 96), seed=8, pictures=pictures)
batch = pairs.batch(0, 2)  # on a GPU: device="cuda", and 32 at a time

panels = []
for number, (frame1, frame2, flow, valid, occluded) in enumerate(zip(*batch, strict=True)):
    scale = measure_max_motion(flow, valid)
    hidden = frame_to_image(frame1).clone()
    hidden[:, occluded] = hidden.new_tensor([230, 40, 40])[:, None]
    panels += [
        (f"pair {number}: first frame", frame_to_image(frame1)),
        ("second frame", frame_to_image(frame2)),
        (f"flow, up to {scale:.0f} px", flow_to_image(flow, valid), draw_wheel_legend(64, scale)),
        (f"occluded: {float(occluded.float().mean()):.0%}", hidden),
    ]
    motion = float(flow.norm(dim=0)[valid].mean())
    print(f"pair {number}: {motion:.1f} px mean motion, {float(occluded.float().mean()):.0%} occluded")

write_image("pairs.png", draw_sheet(panels, columns=4))
