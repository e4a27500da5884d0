"""Tables as Markdown."""

from __future__ import annotations

from collections.abc import Sequence


def table(rows: Sequence[Sequence[str]], *, padded: bool = False) -> list[str]:
    """Lines of a table whose first row is the header; ``padded``: with columns of one width, for people."""
    head, *body = rows
    rule = ["---"] * len(head)
    lines = [list(head), rule, *(list(row) for row in body)]
    if padded:
        widths = [max(len(row[i]) for row in lines) for i in range(len(head))]
        lines[1] = ["-" * width for width in widths]
        lines = [[text.ljust(width) for text, width in zip(row, widths, strict=True)] for row in lines]
    return [f"| {' | '.join(row)} |" for row in lines]


def table_text(rows: Sequence[Sequence[str]]) -> str:
    """Return a table whose first row is the header as text that ends with a line break."""
    return "\n".join(table(rows)) + "\n"
