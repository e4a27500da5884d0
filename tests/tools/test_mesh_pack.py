"""``python -m tools meshes``: reading of GLB files, reduction, packs with meshes, and mistakes."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from fullfield import InputError
from fullfield.training.flow.mesh_shapes import create_procedural_meshes
from fullfield.training.flow.pictures import load_or_create_picture_pack, read_pack_manifest
from tools.__main__ import main
from tools.meshes.glb import Model, UnreadableModelError
from tools.meshes.reduce import reduce_model

pytestmark = pytest.mark.unit

POINTS = np.array([[0, 0, 0], [1, 0, 0], [1, 1, 0], [0, 1, 0], [0, 2, 0], [1, 2, 0]], np.float32)
CORNERS = np.array([0, 1, 2, 0, 2, 3, 3, 2, 5, 3, 5, 4], np.uint16)
HALF_TURN = 0.5**0.5


def write_glb(path: Path, *, change: dict[str, Any] | None = None, cut: int = 0, points: Any = POINTS) -> Path:
    """Write two squares, one above the other: the upper one hangs on a joint that turns by 90° about x in a second."""
    joints = np.zeros((6, 4), np.uint8)
    joints[4:, 0] = 1
    weights = np.tile(np.array([255, 0, 0, 0], np.uint8), (6, 1))
    inverse = np.stack([np.eye(4), np.eye(4)]).astype(np.float32)
    inverse[1, 3, 1] = -1  # column-major: the second joint is at (0, 1, 0)
    times = np.array([0, 1], np.float32)
    turns = np.array([[0, 0, 0, 1], [HALF_TURN, 0, 0, HALF_TURN]], np.float32)
    arrays: list[tuple[NDArray[Any], int, str, bool]] = [
        (np.asarray(points, np.float32), 5126, "VEC3", False),
        (CORNERS[:, None], 5123, "SCALAR", False),
        (joints, 5121, "VEC4", False),
        (weights, 5121, "VEC4", True),
        (inverse, 5126, "MAT4", False),
        (times[:, None], 5126, "SCALAR", False),
        (turns, 5126, "VEC4", False),
    ]
    data = b""
    views, accessors = [], []
    for array, kind, shape, normalized in arrays:
        views.append({"buffer": 0, "byteOffset": len(data), "byteLength": array.nbytes})
        accessors.append({"bufferView": len(views) - 1, "componentType": kind, "count": len(array), "type": shape})
        accessors[-1]["normalized"] = normalized
        data += array.tobytes() + b"\0" * (-array.nbytes % 4)
    attributes = {"POSITION": 0, "JOINTS_0": 2, "WEIGHTS_0": 3}
    document = {
        "asset": {"version": "2.0"},
        "nodes": [
            {"mesh": 0, "skin": 0},
            {"children": [2]},
            {"translation": [0, 1, 0]},
        ],
        "meshes": [{"primitives": [{"attributes": attributes, "indices": 1, "material": 7}]}],
        "skins": [{"joints": [1, 2], "inverseBindMatrices": 4}],
        "animations": [
            {
                "name": "bend",
                "channels": [{"sampler": 0, "target": {"node": 2, "path": "rotation"}}],
                "samplers": [{"input": 5, "output": 6}],
            }
        ],
        "accessors": accessors,
        "bufferViews": views,
        "buffers": [{"byteLength": len(data)}],
        **(change or {}),
    }
    text = json.dumps(document).encode()
    text += b" " * (-len(text) % 4)
    body = struct.pack("<II", len(text), 0x4E4F534A) + text + struct.pack("<II", len(data), 0x004E4942) + data
    whole = struct.pack("<III", 0x46546C67, 2, 12 + len(body)) + body
    path.write_bytes(whole[: len(whole) - cut])
    return path


def test_model_pose_applies_skin_and_clip(tmp_path: Path) -> None:
    model = Model(write_glb(tmp_path / "a.glb"))
    assert model.triangles.shape == (4, 3)
    np.testing.assert_allclose(model.pose(), POINTS, atol=1e-6)
    (clip,) = model.clips
    assert (clip.name, clip.seconds) == ("bend", 1.0)
    bent = POINTS.copy()
    bent[4:] = [[0, 1, 1], [1, 1, 1]]  # about the joint at y = 1
    np.testing.assert_allclose(model.pose(clip, 1.0), bent, atol=1e-6)
    half = model.pose(clip, 0.5)
    np.testing.assert_allclose(half[4], [0, 1 + HALF_TURN, HALF_TURN], atol=1e-6)


def test_model_meshes_have_few_poses_in_unit_sphere(tmp_path: Path) -> None:
    doubled = {"meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "indices": 1}] * 2}], "skins": []}
    still = reduce_model(Model(write_glb(tmp_path / "b.glb", change=doubled)), 100)
    assert [clip.shape for clip in still.clips] == [(1, 6, 3)]
    assert len(still.triangles) == 4  # the second primitive is at the same place
    mesh = reduce_model(Model(write_glb(tmp_path / "a.glb")), 100)
    assert [clip.shape for clip in mesh.clips] == [(6, 6, 3)]
    assert float(np.linalg.norm(mesh.clips[0], axis=-1).max()) == pytest.approx(1, abs=2e-3)
    lengths = np.linalg.norm(mesh.clips[0][0][mesh.triangles[:, 0]] - mesh.clips[0][0][mesh.triangles[:, 1]], axis=-1)
    assert lengths.min() > 0.3


def test_model_with_many_triangles_is_reduced(tmp_path: Path) -> None:
    store = create_procedural_meshes(1)
    points, faces = store.vertices.float().numpy(), store.triangles.numpy().astype(np.uint16)
    data = points.tobytes() + faces.tobytes()
    sizes = [(0, points.nbytes, 5126, "VEC3", len(points)), (points.nbytes, faces.nbytes, 5123, "SCALAR", faces.size)]
    document = {
        "nodes": [{"mesh": 0}],
        "meshes": [{"primitives": [{"attributes": {"POSITION": 0}, "indices": 1}]}],
        "buffers": [{"byteLength": len(data), "uri": "ball.bin"}],
        "bufferViews": [{"buffer": 0, "byteOffset": start, "byteLength": size} for start, size, *_ in sizes],
        "accessors": [
            {"bufferView": index, "componentType": kind, "type": shape, "count": count}
            for index, (_, _, kind, shape, count) in enumerate(sizes)
        ],
    }
    (tmp_path / "ball.bin").write_bytes(data)
    (tmp_path / "ball.gltf").write_text(json.dumps(document))
    mesh = reduce_model(Model(tmp_path / "ball.gltf"), 300)
    assert 100 < len(mesh.triangles) <= 300
    assert float(np.linalg.norm(mesh.clips[0], axis=-1).min()) > 0.05
    (tmp_path / "out.gltf").write_text(json.dumps({**document, "buffers": [{"uri": "../ball.bin"}]}))
    with pytest.raises(UnreadableModelError, match="outside its folder"):
        Model(tmp_path / "out.gltf")


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"cut": 40}, "is cut off"),
        ({"change": {"extensionsRequired": ["KHR_draco_mesh_compression"]}}, "needs KHR_draco_mesh_compression"),
        ({"change": {"meshes": [{"primitives": []}]}}, "has no triangles"),
        ({"change": {"accessors": []}}, r"damaged \(IndexError"),
        ({"points": POINTS * np.nan}, "not finite"),
        ({"points": POINTS[:3]}, "triangles without vertices"),
        ({"change": {"nodes": [{"mesh": 0, "children": [1]}, {"children": [0]}], "skins": []}}, "contain themselves"),
    ],
)
def test_model_refuses_files_without_mesh(tmp_path: Path, how: dict[str, Any], message: str) -> None:
    with pytest.raises(UnreadableModelError, match=message):
        reduce_model(Model(write_glb(tmp_path / "a.glb", **how)), 100)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pack with one picture, a folder of models of which one can be used, and a licence text."""
    monkeypatch.chdir(tmp_path)
    for name in ("photos", "models"):
        Path(name).mkdir()
    noise = np.random.default_rng(0).integers(0, 256, (9, 11, 3), np.uint8)
    Image.fromarray(noise).resize((200, 160), Image.Resampling.BICUBIC).save("photos/a.png")
    assert main(["textures", "-o", "pictures.zip", "--no-packages", "--pictures", "photos", "-q"]) == 0
    write_glb(Path("models/good.glb"))
    write_glb(Path("models/same.glb"))
    write_glb(Path("models/cut.glb"), cut=40)
    Path("models/text.glb").write_text("not a model, but some words that are long enough")
    Path("licence.txt").write_text("CC0 1.0 Universal")
    return tmp_path


WORDS = "meshes -o pack.zip --pack pictures.zip --folder models --package some --author Me --licence CC0-1.0"
WORDS += " --statement licence.txt -q"


@pytest.mark.usefixtures("folder")
def test_mesh_pack_lists_and_loads_meshes(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*WORDS.split(), "--json"]) == 0
    printed = capsys.readouterr()
    facts = json.loads(printed.out)
    assert (facts["meshes"], facts["animated"], facts["triangles"], facts["left_out"]) == (1, 1, 4, 3)
    lines = sorted(printed.err.splitlines())
    assert [line.split(":")[0] for line in lines if "equals" not in line] == ["cut.glb", "text.glb"]
    (entry,) = read_pack_manifest("pack.zip")["meshes"]
    assert (entry["author"], entry["licence"], entry["poses"]) == ("Me", "CC0-1.0", [6])
    pack = load_or_create_picture_pack("pack.zip", size=64, procedural_shape_count=1)
    assert pack.meshes is not None
    assert pack.meshes.table.pose_counts[:2].tolist() == [6, 1]  # procedural ones follow
    pack.meshes.check_fields()
    assert main(["textures", "--list", "pack.zip"]) == 0
    assert "| some |  | CC0-1.0 | 0 | 0 | 1 |" in capsys.readouterr().out
    again = WORDS.replace("pictures.zip", "pack.zip").replace("-o pack.zip", "-o more.zip")
    assert main([*again.split(), "--skip", "same|cut|text"]) == 0
    assert len(read_pack_manifest("more.zip")["meshes"]) == 2
    assert load_or_create_picture_pack("pictures.zip", size=64, procedural_shape_count=1).meshes is None


@pytest.mark.usefixtures("folder")
def test_load_picture_pack_refuses_damaged_mesh_pack() -> None:
    assert main(WORDS.split()) == 0
    with zipfile.ZipFile("pack.zip") as old, zipfile.ZipFile("bad.zip", "w") as new:
        for name in old.namelist():
            new.writestr(name, old.read(name)[:-3] if name == "meshes.bin" else old.read(name))
    with pytest.raises(InputError, match=r"^bad\.zip: "):
        load_or_create_picture_pack("bad.zip", size=64)


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("CC0-1.0", "GPL-3"), "--licence: expected CC0-1.0, public domain, CC-BY or MIT, got 'GPL-3'"),
        (("CC0-1.0", "MIT"), "--statement licence.txt: expected a text with 'Permission is hereby granted'"),
        (("--folder models", "--folder photos"), "photos: expected models (.glb .gltf), found none"),
        (("--folder models", "--folder absent"), "--folder absent: expected a folder, got nothing"),
        (("--pack pictures.zip", "--pack licence.txt"), "licence.txt: not a picture pack"),
        (("-q", "-q --skip same|good"), "models: expected at least one usable model, found none"),
    ],
)
def test_mesh_pack_reports_mistakes_in_one_line(
    capsys: pytest.CaptureFixture[str], change: tuple[str, str], message: str
) -> None:
    assert main(WORDS.replace(*change).split()) == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
    assert not Path("pack.zip").exists()
