"""Sphinx's settings. ``python scripts/docs/site.py`` copies the pages to one place and builds the site of them."""

import re
import sys
from pathlib import Path
from typing import Any

from fullfield import __version__

PAGES = (
    Path(__file__).resolve().parent.parent
)  # scripts/docs/site.py copies them, so that nothing is written into the checkout
sys.path.insert(0, str(PAGES / "docs"))  # for the scraper of the gallery

project = "fullfield"
author = "The fullfield developers"
copyright = "2026, the fullfield developers. Apache-2.0"
version = release = __version__

root_doc = "docs/index"
source_suffix = {".md": "markdown", ".rst": "restructuredtext"}
extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["examples", "docs/gallery/*.ipynb", "benchmarks/notes"]
suppress_warnings = [
    "toc.not_included",
    "ref.python",
]  # classes of modules share names; notes are reached by links; tests/test_docs.py looks for pages without one
highlight_language = "none"  # of blocks without a language: commands
smartquotes = False  # -- begins an option

myst_heading_anchors = 4  # the anchors that GitHub makes too
myst_enable_extensions = ["dollarmath", "colon_fence"]
myst_dmath_allow_labels = False

html_theme = "furo"
html_title = f"fullfield {version}"
html_copy_source = False
html_show_sphinx = False
templates_path = []

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_default_options = {"members": True}
napoleon_numpy_docstring = False
default_role = "code"

sphinx_gallery_conf = {
    "examples_dirs": str(PAGES / "examples"),
    "gallery_dirs": str(PAGES / "docs" / "gallery"),
    "filename_pattern": r"\.py$",
    "image_scrapers": ("gallery_pictures.written",),
    "reset_modules": (),
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "write_computation_times": False,
    "show_signature": False,
    "show_memory": False,
    "min_reported_time": 10_000,
    "abort_on_example_error": True,
    "remove_config_comments": True,
    "capture_repr": (),
    "nested_sections": False,
    "copyfile_regex": "",
}


def toctrees(text: str) -> str:
    """The index with a table of contents, for the sidebar, made of each section's list of links."""

    def after(found: re.Match[str]) -> str:
        title, body = found.groups()
        targets = dict.fromkeys(re.findall(r"\]\(([^)#]+\.(?:md|py))\)", body))
        entries = [f"/{gallery(name)}" if name.endswith(".py") else name.removesuffix(".md") for name in targets]
        return f"{found[0]}\n```{{toctree}}\n:hidden:\n:caption: {title}\n\n" + "\n".join(entries) + "\n```\n\n"

    return re.sub(r"^## (.+)\n((?:(?!^## ).*\n)*)", after, text, flags=re.MULTILINE)


def gallery(link: str) -> str:
    return f"docs/gallery/{Path(link).stem}"


def document_module(section: re.Match[str]) -> str:
    """Return the section of a module with its docstrings in place of the list of names."""
    module, names = section.groups()
    repeated = re.findall(r"^- Also here: (.*)\.$", names, re.MULTILINE)
    exclude = f"   :exclude-members: {repeated[0].replace('`', '')}\n" if repeated else ""
    return f"## {module}\n\n```{{eval-rst}}\n.. automodule:: {module}\n{exclude}```\n\n"


def prepare(_app: Any, name: str, source: list[str]) -> None:
    """Links to examples lead to their pages; of those to folders and notes, which the site lacks, the words stay."""
    folder = (PAGES / name).parent
    text = source[0]
    if name == root_doc:
        text = toctrees(text)
    elif name.startswith("docs/api/") and not name.endswith("/index"):
        text = re.sub(r"^## (fullfield[\w.]*)\n((?:(?!^## ).*\n)*)", document_module, text, flags=re.MULTILINE)
    elif name in ("docs/commands/index", "docs/api/index"):
        verbs = dict.fromkeys(re.findall(r"\]\(([\w-]+)\.md", text))
        text += "\n```{toctree}\n:hidden:\n\n" + "\n".join(verbs) + "\n```\n"

    def link(found: re.Match[str]) -> str:
        words, target = found.groups()
        if "://" in target or target.startswith("#"):
            return found[0]
        there = (folder / target.partition("#")[0]).resolve()
        if there.is_dir():
            return words
        if there.parent == PAGES / "benchmarks" / "notes":
            return f"{words} (`benchmarks/notes/{there.name}`)"
        if there.suffix == ".py" and there.parent == PAGES / "examples":
            return f"[{words}](/{gallery(target)})"
        return found[0]

    source[0] = re.sub(r"(?<!!)\[([^\]]*)\]\(([^)\s]+)\)", link, text)


def finish(app: Any, problem: Exception | None) -> None:
    """The page that a visitor of the site's address sees first leads to the index."""
    if problem is None:
        target = Path(app.outdir) / "index.html"
        target.write_text(f'<meta http-equiv="refresh" content="0; url={root_doc}.html">\n', "utf-8")


def setup(app: Any) -> None:
    app.connect("build-finished", finish)
    app.connect("source-read", prepare)
