"""Tables as text."""

from __future__ import annotations

import csv
import io

from benchmarks.paper import published
from benchmarks.paper.tables import Table


def markdown(table: Table) -> str:
    """The table with its title and notes."""
    head, *rows = table.rows()
    widths = [max(len(row[i]) for row in (head, *rows)) for i in range(len(head))]
    rule = ["-" * width for width in widths]
    lines = [
        "| " + " | ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) + " |"
        for row in (head, rule, *rows)
    ]
    told = [f"Paper: {published.source()}, table {table.key}.", *table.notes]
    return "\n".join([f"## Table {table.key}. {table.title}", "", *lines, "", *(f"- {note}" for note in told), ""])


def comma_separated(table: Table) -> str:
    """The table as CSV, numbers in full: a line for the paper's row and one for ours."""
    records = table.records()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
