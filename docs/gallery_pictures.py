"""The pictures that an example writes, for its page of the site."""

from pathlib import Path
from typing import Any

_shown: dict[str, set[tuple[str, int]]] = {}


def written(_block: Any, block_vars: dict[str, Any], gallery_conf: dict[str, Any]) -> str:
    """The reStructuredText of every .png and .jpg that lies beside the example since its last block."""
    from PIL import Image
    from sphinx_gallery.scrapers import figure_rst

    folder = Path(block_vars["src_file"]).parent
    seen = _shown.setdefault(str(folder), set())
    names = []
    for path in sorted((*folder.glob("*.png"), *folder.glob("*.jpg"))):
        key = (path.name, path.stat().st_mtime_ns)
        if key not in seen:
            seen.add(key)
            target = Path(next(block_vars["image_path_iterator"])).with_suffix(".png")
            target.parent.mkdir(parents=True, exist_ok=True)
            Image.open(path).convert("RGB").save(target)
            names.append(str(target))
    return figure_rst(names, gallery_conf["src_dir"])
