"""Data sets rendered with Blender: 8K frames with the true motion of every pixel, four values each.

``blender/render.py`` and ``blender/scene.py`` run inside Blender and import nothing of fullfield. :func:`render_shot`
starts them and turns their frames and vectors into a shot with flow and masks.
"""

from tools.render.launch import Blender, Shot, render_shot
from tools.render.truth import collect_truth

__all__ = ["Blender", "Shot", "collect_truth", "render_shot"]
