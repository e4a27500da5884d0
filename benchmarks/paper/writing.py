"""Tables as text."""

from __future__ import annotations

import csv
import io

from benchmarks.markdown import table as markdown_table
from benchmarks.paper import published
from benchmarks.paper.tables import Table


def markdown(table: Table) -> str:
    """Return the table with its title and notes."""
    lines = markdown_table(table.rows(), padded=True)
    told = [f"Paper: {published.source()}, table {table.key}.", *table.notes]
    return "\n".join([f"## Table {table.key}. {table.title}", "", *lines, "", *(f"- {note}" for note in told), ""])


def comma_separated(table: Table) -> str:
    """Return the table as CSV, numbers in full: a line for the paper's row and one for ours."""
    records = table.records()
    text = io.StringIO()
    writer = csv.DictWriter(text, list(records[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(records)
    return text.getvalue()
