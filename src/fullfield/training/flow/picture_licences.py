"""Which files of a package may be used: Debian's machine-readable copyright files, and names of licences."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from fullfield._check import InputError

_PLAIN = {"cc0": "CC0-1.0", "cc0-1.0": "CC0-1.0", "public-domain": "public-domain", "mit": "MIT", "expat": "MIT"}
_ATTRIBUTION = re.compile(r"cc-by-\d(\.\d)?", re.IGNORECASE)
_UNKNOWN_AUTHOR = re.compile(r"\?\?|unknown", re.IGNORECASE)


class Terms(NamedTuple):
    """What a copyright file says about one file."""

    licence: str  # as it stands in the file, "" where there is none
    author: str  # the field Copyright on one line


class _Stanza(NamedTuple):
    patterns: tuple[re.Pattern[str], ...]
    terms: Terms


class DebianCopyright:
    """The copyright file of a Debian package, format 1.0 (Debian's "Machine-readable debian/copyright file").

    Args:
        text: the file's content.
        name: how complaints call it.

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
        """What holds for ``path`` in the source package: the last stanza that names it; None where none does."""
        for stanza in reversed(self._stanzas):
            if any(pattern.fullmatch(path) for pattern in stanza.patterns):
                return stanza.terms
        return None


def usable(terms: Terms | None) -> str | None:
    """The name of the licence under which a file may be used; None where it may not.

    CC0, public domain, CC-BY and MIT may. Of "A or B" the first that may is taken; of "A and B" all have to. A licence
    with any further word, one that is not named, and an author who is not known count as unclear.
    """
    if terms is None or not terms.author or _UNKNOWN_AUTHOR.search(terms.author):
        return None
    for alternative in re.split(r"\s+or\s+", terms.licence, flags=re.IGNORECASE):
        names = [_known(name) for name in re.split(r"\s+and\s+", alternative.strip(), flags=re.IGNORECASE)]
        if all(names):
            return " and ".join(name for name in names if name)
    return None


def _known(name: str) -> str | None:
    if _ATTRIBUTION.fullmatch(name):
        return name.upper()
    return _PLAIN.get(name.lower())


def _fields(paragraph: str) -> dict[str, str]:
    """Fields of a paragraph by their names in lower case, continuation lines joined by newlines."""
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
    """The regular expression of a pattern: ``*`` stands for anything, slashes too, ``?`` for one character."""
    pieces = re.findall(r"\\[*?\\]|.", glob)
    wild = {"*": ".*", "?": "."}
    return "".join(wild.get(piece) or re.escape(piece[-1]) for piece in pieces)


def licence_text(manifest: Mapping[str, Any]) -> str:
    """The licence list of a picture pack as Markdown: counts, then every file by package, licence and author.

    ``manifest`` is what :func:`fullfield.training.flow.pictures.licence_list` returns.
    """
    files: dict[tuple[str, ...], dict[str, set[str]]] = {}
    for kind in ("pictures", "shapes"):
        for entry in manifest[kind]:
            terms = tuple(entry[name] for name in ("package", "version", "licence", "author"))
            files.setdefault(terms, {"pictures": set(), "shapes": set()})[kind].add(entry["path"])
    counts: dict[tuple[str, ...], list[int]] = {}
    for terms, found in files.items():
        row = counts.setdefault(terms[:3], [0, 0])
        row[0] += len(found["pictures"])
        row[1] += len(found["shapes"])
    lines = ["| package | version | licence | files used as pictures | as silhouettes |", "|---|---|---|---:|---:|"]
    lines += [f"| {' | '.join(terms)} | {row[0]} | {row[1]} |" for terms, row in sorted(counts.items())]
    title = ""
    for terms, found in sorted(files.items()):
        package, version, licence, author = terms
        if package != title:
            title = package
            lines += ["", f"## {package} {version}".rstrip()]
        lines += ["", f"**{licence}**: {author}", ""]
        folders: dict[str, list[str]] = {}
        for path in sorted(found["pictures"] | found["shapes"]):
            folder, slash, name = path.rpartition("/")
            folders.setdefault(folder + slash, []).append(name)
        lines += [f"- `{folder or './'}` {', '.join(names)}" for folder, names in folders.items()]
    return "\n".join(lines) + "\n"
