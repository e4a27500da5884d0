"""fullfield's own scene, built by code inside Blender, with the cases that are hard for optical flow.

It has textured rigid objects that cross each other, one of them by a twentieth of the frame's width each frame (370
pixels at 8192), wires and a spoked wheel thinner than the coarsest pixels of a pyramid, sky, and a moving camera.
Branches, fans of hairs and grids can be added; the seed then also moves the objects.
"""

from __future__ import annotations

import colorsys
import math
import random

import bpy
from mathutils import Vector

ASPECT = (1024, 576)
SUN = (-0.45, -0.6, 0.66)  # direction to it, when surfaces are shaded by angle


def build(seed: int, first: int, last: int, thin: int = 0, speed: float = 1.0) -> None:
    """Build the scene; the motion is centred on the frames ``first`` to ``last``.

    Args:
        seed: seed of textures, and with ``thin`` of positions.
        first: number of the first frame.
        last: number of the last frame.
        thin: number of branches, fans of hairs and grids to add.
        speed: factor of all motion.
    """
    bpy.ops.wm.read_factory_settings(use_empty=True)
    scene = bpy.context.scene
    scene.render.engine = "CYCLES"
    scene.render.resolution_x, scene.render.resolution_y = ASPECT
    scene.view_settings.view_transform = "Standard"
    draw = random.Random(seed)
    middle = (first + last) / 2
    frames = range(first - 1, last + 2)
    world = bpy.data.worlds.new("sky")
    scene.world = world
    if world.node_tree is None:
        world.use_nodes = True
    background = next(node for node in world.node_tree.nodes if node.bl_idname == "ShaderNodeBackground")
    background.inputs["Color"].default_value = (0.35, 0.5, 0.75, 1.0)
    sun = bpy.data.objects.new("sun", bpy.data.lights.new("sun", "SUN"))
    sun.data.energy, sun.data.angle = 3.0, 0.05
    sun.rotation_euler = (0.7, 0.2, 0.5)
    scene.collection.objects.link(sun)

    ground = add("plane", size=60, location=(0, 20, 0))
    texture(ground, draw, 1.2)
    wall = add("cube", size=1, location=(0, 16, 3.6), scale=(34, 0.5, 7.2))
    texture(wall, draw, 1.5)
    for x, y in ((-4.5, 11), (-1.5, 13), (2.5, 12), (5.5, 10)):
        pillar = add("cylinder", radius=0.45, depth=4, location=(x, y, 2), vertices=48)
        texture(pillar, draw, 2.5)

    movers = [
        # object, position in the middle of the shot, motion per frame, turn per frame (radians)
        (
            add("uv_sphere", radius=0.9, segments=64, ring_count=32),
            (-2.2, 7.5, 1.2),
            (0.12, 0.0, 0.02),
            (0.02, 0.0, 0.07),
        ),
        (add("cube", size=1.4), (2.1, 8.5, 1.0), (-0.16, -0.05, 0.0), (0.03, 0.05, 0.02)),
        (add("torus", major_radius=0.8, minor_radius=0.28), (0.2, 6.2, 2.3), (0.05, 0.1, -0.04), (0.09, 0.02, 0.0)),
        (add("monkey", size=1.5), (3.4, 6.6, 2.6), (-0.04, 0.02, 0.05), (0.0, 0.03, -0.08)),
        # fast: nearer to the camera, about a twentieth of the frame's width per frame
        (add("cube", size=0.7, scale=(1.6, 0.5, 0.6)), (0.0, 2.0, 0.9), (0.27, 0.02, 0.01), (0.0, 0.1, 0.03)),
    ]
    for item, position, step, turn in movers:
        texture(item, draw, 3.0)
        if thin:
            position = tuple(p + draw.uniform(-r, r) for p, r in zip(position, (1.5, 0.2, 0.4), strict=True))
        animate(item, position, step, turn, middle, frames, speed)
    kinds = [branches, hairs, grid] * thin
    draw.shuffle(kinds)
    for k, kind in enumerate(kinds[:thin]):
        item = struts(kind(draw), draw.uniform(0.002, 0.007))
        texture(item, draw, 8.0)
        position = ((k + draw.uniform(0.2, 0.8)) / thin * 6 - 3, draw.uniform(2.0, 4.0), draw.uniform(1.0, 2.6))
        step = tuple(draw.uniform(-r, r) for r in (0.1, 0.03, 0.03))
        turn = tuple(draw.uniform(-r, r) for r in (0.02, 0.05, 0.03))
        animate(item, position, step, turn, middle, frames, speed)

    wheel = [add("torus", major_radius=0.9, minor_radius=0.02)]
    wheel += [add("cylinder", radius=0.008, depth=1.8, rotation=(0, math.pi * k / 8, 0)) for k in range(8)]
    wheel[0].rotation_euler = (math.pi / 2, 0, 0)
    hub = bpy.data.objects.new("hub", None)
    scene.collection.objects.link(hub)
    for part in wheel:
        texture(part, draw, 6.0)
        part.parent = hub
    animate(hub, (-3.4, 5.2, 2.6), (0.03, 0.0, 0.0), (0.0, 0.06, 0.0), middle, frames, speed)
    for k in range(9):
        wire = add("cylinder", radius=0.006, depth=5, location=(-2.6 + 0.65 * k, 3.4 + 0.1 * (k % 3), 2.5))
        texture(wire, draw, 8.0)

    camera = bpy.data.objects.new("camera", bpy.data.cameras.new("camera"))
    camera.data.lens, camera.data.sensor_width = 28, 36
    scene.collection.objects.link(camera)
    scene.camera = camera
    step, turn = (0.03, 0.05, 0.004), (0.0, 0.0, -0.004)
    if thin:
        step, turn = (draw.uniform(-0.06, 0.06), 0.05, 0.004), (0.0, 0.002, draw.uniform(-0.008, 0.008))
    animate(camera, (0.0, -2.5, 1.8), step, turn, middle, frames, speed, (math.pi / 2, 0, 0))
    for count, item in enumerate(item for item in scene.objects if item.type == "MESH"):
        item.pass_index = count + 1


def add(kind: str, **options: object) -> bpy.types.Object:
    """Add a mesh primitive to the scene and return its object."""
    scale = options.pop("scale", (1, 1, 1))
    getattr(bpy.ops.mesh, f"primitive_{kind}_add")(**options)
    item = bpy.context.active_object
    item.scale = scale
    if kind in ("uv_sphere", "torus", "cylinder", "monkey"):
        for polygon in item.data.polygons:
            polygon.use_smooth = kind != "cylinder" or len(polygon.vertices) == 4
    return item


Strut = tuple[Vector, Vector]


def branches(draw: random.Random) -> list[Strut]:
    """Return the struts of a twig that forks five times."""
    found: list[Strut] = []
    tips = [(Vector((0, 0, -0.7)), Vector((0, 0, 0.45)))]
    for _ in range(6):
        grown = []
        for start, way in tips:
            end = start + way
            found.append((start, end))
            for _ in range(2):
                side = Vector([draw.gauss(0, 1) for _ in range(3)]).normalized() * 0.7 * way.length
                grown.append((end, (way + side).normalized() * way.length * draw.uniform(0.6, 0.85)))
        tips = grown
    return found


def hairs(draw: random.Random) -> list[Strut]:
    """Return the struts of sixty hairs that fan out from one point, each bent at its middle."""
    found: list[Strut] = []
    for k in range(60):
        angle = math.pi * (k + draw.uniform(0, 1)) / 60
        way = Vector((math.cos(angle), draw.uniform(-0.3, 0.3), math.sin(angle))) * draw.uniform(0.3, 0.5)
        bend = way + Vector((0, 0, -0.12 * draw.random()))
        found += [(Vector(), way), (way, way + bend)]
    return found


def grid(draw: random.Random) -> list[Strut]:
    """Return the struts of a square grid of wires."""
    count = draw.randint(6, 14)
    places = [2 * k / (count - 1) - 1 for k in range(count)]
    lines = [(Vector((x, 0, -1)), Vector((x, 0, 1))) for x in places]
    return [(a * 0.6, b * 0.6) for a, b in lines + [(a.zyx, b.zyx) for a, b in lines]]


def struts(lines: list[Strut], radius: float, sides: int = 5) -> bpy.types.Object:
    """Add one mesh of open prisms along lines."""
    points, faces = [], []
    for start, end in lines:
        across = (end - start).orthogonal().normalized() * radius
        other = (end - start).normalized().cross(across)
        base = len(points)
        for k in range(sides):
            angle = 2 * math.pi * k / sides
            offset = math.cos(angle) * across + math.sin(angle) * other
            points += [start + offset, end + offset]
            a, b = base + 2 * k, base + 2 * ((k + 1) % sides)
            faces.append((a, b, b + 1, a + 1))
    mesh = bpy.data.meshes.new("struts")
    mesh.from_pydata(points, [], faces)
    item = bpy.data.objects.new("struts", mesh)
    bpy.context.scene.collection.objects.link(item)
    return item


def texture(item: bpy.types.Object, draw: random.Random, scale: float) -> None:
    """Give an object a texture with detail at many sizes: fractal noise between two colours, cut by cells."""
    material = bpy.data.materials.new(item.name)
    if material.node_tree is None:
        material.use_nodes = True
    tree = material.node_tree
    surface = next(node for node in tree.nodes if node.bl_idname == "ShaderNodeBsdfPrincipled")
    position = tree.nodes.new("ShaderNodeTexCoord")
    shift = tree.nodes.new("ShaderNodeMapping")
    shift.inputs["Location"].default_value = [draw.uniform(-50, 50) for _ in range(3)]
    noise = tree.nodes.new("ShaderNodeTexNoise")
    noise.inputs["Scale"].default_value = scale * 2
    noise.inputs["Detail"].default_value = 15.0
    noise.inputs["Roughness"].default_value = 0.72
    cells = tree.nodes.new("ShaderNodeTexVoronoi")
    cells.inputs["Scale"].default_value = scale * 3
    ramp = tree.nodes.new("ShaderNodeValToRGB")
    hue = draw.random()
    colors = [
        colorsys.hsv_to_rgb((hue + turn) % 1.0, draw.uniform(0.15, 0.55), value)
        for turn, value in ((0.0, draw.uniform(0.06, 0.25)), (draw.uniform(-0.1, 0.1), draw.uniform(0.55, 0.9)))
    ]
    ramp.color_ramp.elements[0].position, ramp.color_ramp.elements[1].position = 0.38, 0.62
    for element, rgb in zip(ramp.color_ramp.elements, colors, strict=True):
        element.color = (*rgb, 1.0)
    mix = tree.nodes.new("ShaderNodeMixRGB")
    mix.blend_type = "MULTIPLY"
    mix.inputs["Fac"].default_value = 0.35
    tree.links.new(position.outputs["Object"], shift.inputs["Vector"])
    for node in (noise, cells):
        tree.links.new(shift.outputs["Vector"], node.inputs["Vector"])
    tree.links.new(noise.outputs["Fac" if "Fac" in noise.outputs else 0], ramp.inputs["Fac"])
    tree.links.new(ramp.outputs["Color"], mix.inputs["Color1"])
    tree.links.new(cells.outputs["Color"], mix.inputs["Color2"])
    tree.links.new(mix.outputs["Color"], surface.inputs["Base Color"])
    surface.inputs["Roughness"].default_value = 0.9
    item.data.materials.append(material)


def animate(
    item: bpy.types.Object,
    position: tuple[float, float, float],
    step: tuple[float, float, float],
    turn: tuple[float, float, float],
    middle: float,
    frames: range,
    speed: float = 1.0,
    upright: tuple[float, float, float] = (0.0, 0.0, 0.0),
) -> None:
    """Move and turn an object steadily, with a key at every frame so that nothing is interpolated."""
    for number in frames:
        past = (number - middle) * speed
        item.location = [p + past * s for p, s in zip(position, step, strict=True)]
        item.rotation_euler = [u + past * t for u, t in zip(upright, turn, strict=True)]
        item.keyframe_insert("location", frame=number)
        item.keyframe_insert("rotation_euler", frame=number)


def shade_by_angle() -> None:
    """Shade every surface by its angle to the sun alone, without shadows, so that one sample has no noise.

    A dome with clouds replaces the sky, so that every pixel has a surface.
    """
    dome = add("uv_sphere", radius=90, segments=64, ring_count=32)
    texture(dome, random.Random(0), 0.02)
    for item in [item for item in bpy.context.scene.objects if item.type == "LIGHT"]:
        bpy.data.objects.remove(item)
    for material in bpy.data.materials:
        tree = material.node_tree
        nodes = {node.bl_idname: node for node in tree.nodes}
        normal = tree.nodes.new("ShaderNodeNewGeometry").outputs["Normal"]
        angle, share = tree.nodes.new("ShaderNodeVectorMath"), tree.nodes.new("ShaderNodeMath")
        angle.operation, share.operation = "DOT_PRODUCT", "MULTIPLY_ADD"
        angle.inputs[1].default_value = SUN
        share.inputs[1].default_value, share.inputs[2].default_value = 0.5, 0.6
        emission = tree.nodes.new("ShaderNodeEmission")
        tree.links.new(normal, angle.inputs[0])
        tree.links.new(angle.outputs["Value"], share.inputs[0])
        tree.links.new(share.outputs["Value"], emission.inputs["Strength"])
        tree.links.new(nodes["ShaderNodeValToRGB"].outputs["Color"], emission.inputs["Color"])
        tree.links.new(emission.outputs["Emission"], nodes["ShaderNodeOutputMaterial"].inputs["Surface"])
        nodes["ShaderNodeTexNoise"].inputs["Detail"].default_value = 9.0  # finer detail would alias
        nodes["ShaderNodeTexNoise"].inputs["Roughness"].default_value = 0.62
        material.cycles.emission_sampling = "NONE"
