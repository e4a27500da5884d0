"""Script that renders frames and motion vectors inside Blender (4.2 or newer), or with ``bpy``; needs nothing else.

    blender -b shot.blend --factory-startup -P render.py -- --output OUT/shot --frames 101 196
    python render.py --blend shot.blend --output OUT/shot --frames 101 196     (an environment with bpy)

It writes ``frames/frame_0101.png`` and ``vectors/vectors_0101.exr`` atomically, and keeps files that exist.
``python -m tools render`` runs this and turns the vectors into flow.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

import bpy

# Settings of Briedis et al. 2026, section 9.2 and listing 1.
ADAPTIVE_THRESHOLD = 0.01
CLAMP_DIRECT = 50.0
VECTOR_SCALE = 2
FLARES = "flares"


def main(arguments: list[str]) -> None:
    """Render the shot that the command line describes."""
    parser = argparse.ArgumentParser(prog="render.py")
    source = parser.add_mutually_exclusive_group()
    source.add_argument("--blend", help="open this file (Blender itself may have opened one)")
    source.add_argument("--own-scene", type=int, metavar="SEED", help="build fullfield's scene")
    parser.add_argument("--output", type=Path, required=True, help="folder of the shot")
    parser.add_argument("--frames", type=int, nargs=2, required=True, metavar=("FIRST", "LAST"))
    parser.add_argument("--thin", type=int, default=0, help="add so many thin objects to fullfield's scene")
    parser.add_argument("--speed", type=float, default=1.0, help="factor of the motion in fullfield's scene")
    parser.add_argument("--fast", action="store_true", help="shade fullfield's scene by angle, one sample per value")
    parser.add_argument("--width", type=int, default=8192)
    parser.add_argument("--height", type=int, help="height of the frames; the scene's shape if absent")
    parser.add_argument("--samples", type=int, default=1024)
    parser.add_argument("--device", choices=("CPU", "GPU"), default="CPU")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--checks", action="store_true", help="write positions and matrices too, to test the vectors")
    args = parser.parse_args(arguments)

    first, last = args.frames
    if args.own_scene is not None:
        sys.path.insert(0, str(Path(__file__).resolve().parent))
        import scene as own

        own.build(args.own_scene, first, last, args.thin, args.speed)
        if args.fast:
            own.shade_by_angle()
    elif args.blend:
        bpy.ops.wm.open_mainfile(filepath=args.blend, load_ui=False)
    scene = bpy.context.scene
    if scene.camera is None:
        sys.exit("render.py: the scene has no camera")
    simplify(scene, args.width, args.height)
    scene.cycles.device = args.device
    if args.threads:
        scene.render.threads_mode, scene.render.threads = "FIXED", args.threads
    record_settings(args, scene)
    size = (scene.render.resolution_x, scene.render.resolution_y)
    for number in range(first, last + 1):
        frame = args.output / "frames" / f"frame_{number:04d}.png"
        if not args.fast and not frame.is_file():
            set_up_color(scene, size, args.samples)
            render_frame(scene, number, frame)
        vectors = args.output / "vectors" / f"vectors_{number:04d}.exr"
        if not vectors.is_file():
            set_up_motion(scene, size, args.checks, quick=args.own_scene is not None and not args.fast)
            if args.fast:
                scene.cycles.max_bounces = 0
                scene.world.cycles.sampling_method = "NONE"
                scene.cycles.use_auto_tile = False  # less time, but the whole film is in memory
                scene.render.image_settings.exr_codec = "NONE"
            if args.checks:
                write_matrices(scene, number, vectors.with_suffix(".json"))
            render_frame(scene, number, vectors)
        print(f"fullfield: frame {number} done", flush=True)


def simplify(scene: bpy.types.Scene, width: int, height: int | None) -> None:
    """Switch off what would blur or hide motion: motion blur, volumes, flares, compositing, the sequencer."""
    render = scene.render
    height = height or max(1, round(render.resolution_y * width / render.resolution_x))
    render.resolution_x, render.resolution_y, render.resolution_percentage = width, height, 100
    render.engine = "CYCLES"
    render.use_motion_blur = False
    render.use_border = render.use_crop_to_border = False
    render.use_multiview = False
    render.use_compositing = render.use_sequencer = False
    flares = bpy.data.collections.get(FLARES)
    if flares is not None:
        bpy.data.collections.remove(flares)
    for node_tree, target in outputs():
        for node in node_tree.nodes:
            if node.bl_idname == target and node.is_active_output:
                for link in list(node.inputs["Volume"].links):
                    node_tree.links.remove(link)
    for item in bpy.data.objects:
        if item.type == "VOLUME":
            item.hide_render = True
    scene.cycles.sample_clamp_direct = CLAMP_DIRECT


def outputs() -> list[tuple[bpy.types.NodeTree, str]]:
    """Return the node trees of materials and worlds, each with the type of its output node."""
    materials = [(m.node_tree, "ShaderNodeOutputMaterial") for m in bpy.data.materials if m.node_tree]
    return materials + [(w.node_tree, "ShaderNodeOutputWorld") for w in bpy.data.worlds if w.node_tree]


def set_up_color(scene: bpy.types.Scene, size: tuple[int, int], samples: int) -> None:
    """Set up the render of a frame in colour."""
    render, cycles = scene.render, scene.cycles
    render.resolution_x, render.resolution_y = size
    render.film_transparent = False
    cycles.samples = samples
    cycles.use_adaptive_sampling = True
    cycles.adaptive_threshold = ADAPTIVE_THRESHOLD
    cycles.use_denoising = True
    cycles.denoiser = "OPENIMAGEDENOISE"
    cycles.pixel_filter_type, cycles.filter_width = "BLACKMAN_HARRIS", 1.5
    for layer in scene.view_layers:
        layer.material_override = None
        layer.use_pass_combined = True
        layer.use_pass_vector = layer.use_pass_position = layer.use_pass_object_index = False
    image = render.image_settings
    if hasattr(image, "media_type"):  # Blender 5
        image.media_type = "IMAGE"
    image.file_format, image.color_mode, image.color_depth = "PNG", "RGB", "8"


def set_up_motion(scene: bpy.types.Scene, size: tuple[int, int], checks: bool, *, quick: bool) -> None:
    """Set up the render of vectors: twice the size, one sample at each pixel's centre, alpha 1 on surfaces.

    With ``quick`` a black material replaces all others. Then no material can hide a surface, and the colour is lost.
    """
    render, cycles = scene.render, scene.cycles
    render.resolution_x, render.resolution_y = (VECTOR_SCALE * side for side in size)
    render.film_transparent = True
    cycles.samples = 1
    cycles.use_adaptive_sampling = cycles.use_denoising = False
    cycles.pixel_filter_type, cycles.filter_width = "BOX", 0.01
    for layer in scene.view_layers:
        layer.use_pass_combined = layer.use_pass_vector = True
        layer.material_override = black() if quick else None
        layer.use_pass_position = layer.use_pass_object_index = checks
    image = render.image_settings
    if hasattr(image, "media_type"):
        image.media_type = "MULTI_LAYER_IMAGE"
    image.file_format, image.color_depth, image.exr_codec = "OPEN_EXR_MULTILAYER", "32", "ZIP"


def black() -> bpy.types.Material:
    """Return a material that is quick to shade."""
    material = bpy.data.materials.new("black")
    if material.node_tree is None:
        material.use_nodes = True
    tree = material.node_tree
    tree.nodes.clear()
    shader, output = tree.nodes.new("ShaderNodeEmission"), tree.nodes.new("ShaderNodeOutputMaterial")
    shader.inputs["Strength"].default_value = 0.0
    tree.links.new(shader.outputs[0], output.inputs["Surface"])
    return material


def render_frame(scene: bpy.types.Scene, number: int, path: Path) -> None:
    """Render one frame into ``path``, under a temporary name until it is complete."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".part_{os.getpid()}_{path.name}")
    scene.frame_set(number)
    scene.render.use_file_extension = False
    scene.render.filepath = str(part)
    bpy.ops.render.render(write_still=True)
    if not part.is_file():
        sys.exit(f"render.py: Blender wrote no {part}")
    part.replace(path)


def record_settings(args: argparse.Namespace, scene: bpy.types.Scene) -> None:
    """Store the settings of the frames in ``render.json``; exit if the folder has frames with other settings."""
    blend = None if args.own_scene is not None else Path(args.blend or bpy.data.filepath)
    settings = {
        "source": "own scene" if blend is None else blend.name,
        "bytes": None if blend is None else blend.stat().st_size,
        "seed": args.own_scene,
        "width": scene.render.resolution_x,
        "height": scene.render.resolution_y,
        "samples": args.samples,
        "adaptive_threshold": ADAPTIVE_THRESHOLD,
        "clamp_direct": CLAMP_DIRECT,
        "vector_scale": VECTOR_SCALE,
        "blender": bpy.app.version_string,
    }
    if args.own_scene is not None:  # its motion is spread over the range
        settings["frames"] = list(args.frames)
        settings.update(thin=args.thin, speed=args.speed, fast=args.fast)
    path = args.output / "render.json"
    if path.is_file():
        before = json.loads(path.read_text("utf-8"))  # Blender's Python has no fullfield to compare them
        changed = [f"{k} was {before.get(k)!r}, is {v!r}" for k, v in settings.items() if before.get(k) != v]
        if changed:
            sys.exit(f"render.py: {args.output} was rendered with other settings ({'; '.join(changed)})")
        return
    args.output.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".part_{os.getpid()}_render.json")
    part.write_text(json.dumps(settings, indent=1) + "\n", "utf-8")
    part.replace(path)


def write_matrices(scene: bpy.types.Scene, number: int, path: Path) -> None:
    """Write the matrices of camera and objects at this frame and the next; tests compute the motion from them."""
    found: dict[str, object] = {"width": scene.render.resolution_x, "height": scene.render.resolution_y}
    for key, when in (("this", number), ("next", number + 1)):
        scene.frame_set(when)
        depsgraph = bpy.context.evaluated_depsgraph_get()
        camera = scene.camera.evaluated_get(depsgraph)
        projection = camera.calc_matrix_camera(depsgraph, x=scene.render.resolution_x, y=scene.render.resolution_y)
        found[key] = {
            "camera": rows(projection @ camera.matrix_world.inverted()),
            "objects": {
                str(item.pass_index): rows(item.evaluated_get(depsgraph).matrix_world)
                for item in scene.objects
                if item.pass_index
            },
        }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found), "utf-8")


def rows(matrix: object) -> list[list[float]]:
    """Return the rows of a matrix as lists."""
    return [list(row) for row in matrix]  # type: ignore[attr-defined]  # a mathutils.Matrix


if __name__ == "__main__":
    main(sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else sys.argv[1:])
