"""Packages that the picture pack is built from: their files, licences and archives."""

from __future__ import annotations

import base64
import re
import shutil
import subprocess
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from fullfield._check import InputError

_PLAIN = {"cc0": "CC0-1.0", "cc0-1.0": "CC0-1.0", "public-domain": "public-domain", "mit": "MIT", "expat": "MIT"}
_ATTRIBUTION = re.compile(r"cc-by-\d(\.\d)?", re.IGNORECASE)
_UNKNOWN_AUTHOR = re.compile(r"\?\?|unknown", re.IGNORECASE)

SUFFIXES = (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".exr", ".hdr")
"""Suffixes of pictures."""


class Terms(NamedTuple):
    """Licence and author of one file, as its package states them."""

    licence: str  # "" if none is named
    author: str  # the field Copyright, joined to one line


class _Stanza(NamedTuple):
    patterns: tuple[re.Pattern[str], ...]
    terms: Terms


class DebianCopyright:
    """Copyright file of a Debian package, format 1.0 (Debian's "Machine-readable debian/copyright file").

    Args:
        text: the file's content.
        name: name of the file in error messages.

    Raises:
        InputError: the text is not in that format.
    """

    def __init__(self, text: str, name: str = "copyright file") -> None:
        if "copyright-format/1.0" not in text.partition("\n\n")[0]:
            raise InputError(f"{name}: expected Debian's copyright format 1.0, got {text[:40]!r}")
        self._stanzas = []
        for paragraph in re.split(r"\n[ \t]*\n", text):
            fields = _fields(paragraph)
            if "files" in fields:
                patterns = tuple(re.compile(_expression(glob)) for glob in fields["files"].split())
                licence = fields.get("license", "").partition("\n")[0].strip()
                terms = Terms(licence, " ".join(fields.get("copyright", "").split()))
                self._stanzas.append(_Stanza(patterns, terms))

    def terms(self, path: str) -> Terms | None:
        """Return the terms of ``path`` in the source package, from the last stanza that matches; None if none does."""
        for stanza in reversed(self._stanzas):
            if any(pattern.fullmatch(path) for pattern in stanza.patterns):
                return stanza.terms
        return None


def usable(terms: Terms | None) -> str | None:
    """Return the name of the licence under which a file may be used; None if it may not be used.

    CC0, public domain, CC-BY and MIT are accepted. "A or B" yields the first accepted one; "A and B" requires both.
    A licence with any further word, a missing licence and an unknown author are refused.
    """
    if terms is None or not terms.author or _UNKNOWN_AUTHOR.search(terms.author):
        return None
    for alternative in re.split(r"\s+or\s+", terms.licence, flags=re.IGNORECASE):
        named = re.split(r"\s+and\s+", alternative.strip(), flags=re.IGNORECASE)
        known = [name.upper() if _ATTRIBUTION.fullmatch(name) else _PLAIN.get(name.lower(), "") for name in named]
        if all(known):
            return " and ".join(known)
    return None


def _fields(paragraph: str) -> dict[str, str]:
    """Return the fields of a paragraph by lower-case name, continuation lines joined by newlines."""
    fields: dict[str, str] = {}
    last = ""
    for line in paragraph.splitlines():
        if line.startswith((" ", "\t")):
            if last:
                fields[last] += "\n" + line.strip()
        elif ":" in line and not line.startswith("#"):
            last, _, value = line.partition(":")
            last = last.strip().lower()
            fields[last] = value.strip()
    return fields


def _expression(glob: str) -> str:
    """Return the regular expression of a pattern: ``*`` matches anything, slashes too, ``?`` one character."""
    pieces = re.findall(r"\\[*?\\]|.", glob)
    wild = {"*": ".*", "?": "."}
    return "".join(wild.get(piece) or re.escape(piece[-1]) for piece in pieces)


class Candidate(NamedTuple):
    """Picture file whose licence allows its use."""

    file: Path
    package: str
    version: str
    path: str  # in the package
    author: str
    licence: str
    cutout: bool  # its alpha channel is the outline of an object
    textured: bool  # it can be a texture


class Package(NamedTuple):
    """Package, with the function that finds its pictures and their licences."""

    name: str
    kind: str  # deb, wheel or npm
    version: str  # to fetch; "" for Debian, whose release decides
    find: Callable[[Path, str], Iterator[Candidate]]  # unpacked folder, version

    @property
    def pattern(self) -> str:
        """Glob pattern of the names of its archives."""
        stem = {"npm": self.name.lstrip("@").replace("/", "-"), "wheel": self.name.replace("-", "_")}
        mark = "_" if self.kind == "deb" else "-"
        return f"{stem.get(self.kind, self.name)}{mark}*.{ {'deb': 'deb', 'wheel': 'whl', 'npm': 'tgz'}[self.kind] }"


# -- Debian ------------------------------------------------------------------------------------------------------------

_LEFT_OUT = (
    (re.compile(r"data/trak/trak4/"), "its readme names source material under unclear terms"),
    (re.compile(r"data/(gui|skins|editor|ttf|fonts|crosshairs|textures/keys)/"), "icons and parts of menus"),
    (re.compile(r"data/maps/|.*/screenshot"), "pictures of scenes that show other authors' textures"),
    (re.compile(r".*/gfx_"), "glows and sparks"),
)


def debian_pictures(
    root: Path, version: str, *, name: str, installed: str, source: str, cutouts: str = r"(?!)"
) -> Iterator[Candidate]:
    """Yield the pictures of an unpacked Debian package whose copyright file allows their use, sorted by name.

    Args:
        root: folder of the unpacked package.
        version: version of the package.
        name: name of the package.
        installed: folder of its installed files, ``usr/share/...``.
        source: the same folder in the source package, whose files the copyright file names.
        cutouts: expression for paths (in the source) whose alpha channel is an outline.

    Raises:
        InputError: the copyright file is not in Debian's format.
        OSError: the copyright file is missing.
    """
    file = root / "usr/share/doc" / name / "copyright"
    copyright_ = DebianCopyright(file.read_text("utf-8"), str(file))
    outline = re.compile(cutouts)
    base = root / installed
    for path in sorted(p for p in base.rglob("*") if p.suffix.lower() in SUFFIXES and not p.is_symlink()):
        inside = source + path.relative_to(base).as_posix()
        if any(expression.match(inside) for expression, _ in _LEFT_OUT):
            continue
        terms = copyright_.terms(inside)
        licence = usable(terms)
        if licence is not None and terms is not None:
            cut = outline.search(inside) is not None
            yield Candidate(path, name, version, inside, terms.author, licence, cut, textured=True)


def _debian(name: str, installed: str, source: str, cutouts: str = r"(?!)") -> Package:
    find = partial(debian_pictures, name=name, installed=installed, source=source, cutouts=cutouts)
    return Package(name, "deb", "", find)


def openclipart_pictures(root: Path, version: str) -> Iterator[Candidate]:
    """Yield clip art; one statement in the copyright file dedicates all of it to the public domain."""
    name = "openclipart-png"
    file = root / "usr/share/doc" / name / "copyright"
    if "Public Domain Dedication" not in file.read_text("utf-8"):
        raise InputError(f"{file}: expected the dedication to the public domain, found none")
    base = root / "usr/share/openclipart/png"
    for path in sorted(p for p in base.rglob("*.png") if not p.is_symlink()):
        inside = path.relative_to(base).as_posix()
        author = "contributors of openclipart.org"
        yield Candidate(path, name, version, inside, author, "public-domain", cutout=True, textured=False)


# -- PyPI and npm ------------------------------------------------------------------------------------------------------

_NASA = "NASA"
_SKIMAGE = {  # from the docstrings of skimage.data; pictures without a clear dedication are not listed
    "astronaut.png": (_NASA, "public-domain"),
    "brick.png": ("CC0Textures", "CC0-1.0"),
    "camera.png": ("Lav Varshney", "CC0-1.0"),
    "chelsea.png": ("Stefan van der Walt", "CC0-1.0"),
    "clock_motion.png": ("Stefan van der Walt", "public-domain"),
    "coffee.png": ("Rachel Michetti", "CC0-1.0"),
    "grass.png": ("CC0Textures", "CC0-1.0"),
    "gravel.png": ("CC0Textures", "CC0-1.0"),
    "horse.png": ("Andreas Preuss", "CC0-1.0"),
    "hubble_deep_field.jpg": (_NASA, "public-domain"),
    "retina.jpg": ("Häggström, Mikael", "CC0-1.0"),
    "rocket.jpg": ("SpaceX", "public-domain"),
}


def skimage_pictures(root: Path, version: str) -> Iterator[Candidate]:
    """Yield the pictures of the scikit-image wheel whose authors dedicated them to the public."""
    for name, (author, licence) in sorted(_SKIMAGE.items()):
        path = root / "skimage/data" / name
        if path.is_file():
            inside = f"skimage/data/{name}"
            yield Candidate(path, "scikit-image", version, inside, author, licence, cutout=False, textured=True)


def bpy_pictures(root: Path, version: str) -> Iterator[Candidate]:
    """Yield the panoramas of Blender's studio lights, if their licence file states CC0."""
    for statement in sorted(root.glob("bpy/*/datafiles/studiolights/world/license.txt")):
        if "All HDRIs are licensed as CC0" not in statement.read_text("utf-8"):
            raise InputError(f"{statement}: expected CC0 for all panoramas, found no such statement")
        for path in sorted(statement.parent.glob("*.exr")):
            inside = path.relative_to(root).as_posix()
            yield Candidate(path, "bpy", version, inside, "Greg Zaal (Poly Haven)", "CC0-1.0", False, True)


def pmndrs_pictures(root: Path, version: str) -> Iterator[Candidate]:
    """Yield the panoramas of the npm package @pmndrs/assets, which stores them as text in modules."""
    statement = next(iter(sorted(root.glob("package/LICENSE*"))), None)
    if statement is None or "CC0 1.0 Universal" not in statement.read_text("utf-8"):
        raise InputError(f"{root / 'package'}: expected a licence file with CC0 1.0, found none")
    for module in sorted(root.glob("package/hdri/*.exr.js")):
        data = re.search(r"base64,([A-Za-z0-9+/=]+)", module.read_text("ascii"))
        if data is None:
            raise InputError(f"{module}: expected a picture as base64, found none")
        path = module.with_suffix("")
        path.write_bytes(base64.b64decode(data[1]))
        inside = f"hdri/{path.name}"
        yield Candidate(path, "@pmndrs/assets", version, inside, "Poly Haven", "CC0-1.0", False, True)


PACKAGES = (
    Package("openclipart-png", "deb", "", openclipart_pictures),
    _debian("lomiri-wallpapers-16.04", "usr/share/backgrounds", "16.04/"),
    _debian("redeclipse-data", "usr/share/games/redeclipse", ""),
    _debian(
        "supertuxkart-data", "usr/share/games/supertuxkart", "", r"leaf|leaves|tree|bush|branch|palm|grass|plant|icon"
    ),
    Package("scikit-image", "wheel", "0.26.0", skimage_pictures),
    Package("bpy", "wheel", "5.2.3", bpy_pictures),
    Package("@pmndrs/assets", "npm", "1.7.0", pmndrs_pictures),
)
"""Packages of the picture pack."""


# -- the user's own ----------------------------------------------------------------------------------------------------


def own_pictures(folder: Path, licence: str, author: str, *, cutout: bool) -> Iterator[Candidate]:
    """Yield the pictures of the user's folder, with the licence and author that the user states.

    Raises:
        InputError: the folder holds no picture.
    """
    files = sorted(p for p in folder.rglob("*") if p.suffix.lower() in SUFFIXES and p.is_file())
    if not files:
        raise InputError(f"{folder}: expected pictures ({' '.join(SUFFIXES)}), found none")
    for path in files:
        inside = path.relative_to(folder).as_posix()
        yield Candidate(path, folder.name, "", inside, author, licence, cutout, textured=not cutout)


# -- fetching ----------------------------------------------------------------------------------------------------------


def fetch(package: Package, archives: Path) -> Path:
    """Return the package's archive in ``archives``; fetch an absent one with the registry's own client.

    Raises:
        InputError: the client is not installed or reports an error, or there are several archives.
    """
    here = sorted(archives.glob(package.pattern))
    if not here:
        wanted = package.name + {"deb": "", "wheel": f"=={package.version}", "npm": f"@{package.version}"}[package.kind]
        _call(_CLIENTS[package.kind] + [wanted], archives)
        here = sorted(archives.glob(package.pattern))
    if len(here) != 1:
        raise InputError(f"{archives}: expected one archive {package.pattern}, found {len(here)}")
    return here[0]


_ANY_PYTHON = ("--python-version", "3.13", "--platform", "manylinux_2_28_x86_64")  # wheels are read, not run
_CLIENTS = {
    "deb": ["apt-get", "download", "-q"],
    "wheel": ["pip", "download", "-q", "--no-deps", "--only-binary=:all:", *_ANY_PYTHON],
    "npm": ["npm", "pack", "--silent"],
}


def unpack(package: Package, archive: Path, folder: Path) -> tuple[Path, str]:
    """Unpack an archive into ``folder``; return the root of the files and the package's version.

    Raises:
        InputError: the archive is damaged, or ``dpkg-deb`` is not installed.
    """
    root = folder / package.name.replace("/", "-")
    root.mkdir()
    if package.kind == "deb":
        _call(["dpkg-deb", "-x", str(archive.absolute()), str(root.absolute())], folder)
        return root, _call(["dpkg-deb", "-f", str(archive.absolute()), "Version"], folder).strip()
    try:
        if package.kind == "npm":
            with tarfile.open(archive) as tar:
                tar.extractall(root, filter="data")
        else:
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(root, [n for n in wheel.namelist() if _WHEEL_PARTS.match(n)])
    except (tarfile.TarError, zipfile.BadZipFile, EOFError) as error:
        raise InputError(f"{archive}: cannot be unpacked ({error})") from error
    version = re.search(r"-(\d+(?:\.\d+)+)", archive.name)
    return root, version[1] if version else ""


_WHEEL_PARTS = re.compile(r"skimage/data/|bpy/[^/]+/datafiles/studiolights/world/")


def _call(command: Sequence[str], folder: Path) -> str:
    if shutil.which(command[0]) is None:
        raise InputError(
            f"{command[0]}: not installed; fetch the packages on another machine and name their folder with --archives"
        )
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise InputError(f"{' '.join(command[:2])} {command[-1]}: {last[:160]}")
    return done.stdout
