"""Words about tensors, and plain-text tables, as wide as their content."""

from __future__ import annotations

from collections.abc import Sequence


def table(header: Sequence[str], rows: Sequence[Sequence[object]], *, right: Sequence[str] = ()) -> str:
    """Lay out rows under a header; the columns named in `right` are aligned to the right.

    >>> print(table(["name", "n"], [["a", 5], ["bc", 12]], right=["n"]))
    name   n
    ----  --
    a      5
    bc    12
    """
    cells = [list(header), *([f"{cell:,}" if isinstance(cell, int) else str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[column]) for row in cells) for column in range(len(header))]
    cells.insert(1, ["-" * width for width in widths])
    return "\n".join(
        "  ".join(
            cell.rjust(width) if name in right else cell.ljust(width)
            for cell, width, name in zip(row, widths, header, strict=True)
        ).rstrip()
        for row in cells
    )


def plural(count: int, noun: str) -> str:
    """The count with its noun.

    >>> plural(1, "neuron"), plural(1200, "neuron")
    ('1 neuron', '1,200 neurons')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def shape(sizes: Sequence[int]) -> str:
    """A tensor's shape.

    >>> shape((8, 4, 3, 3)), shape(())
    ('8x4x3x3', 'scalar')
    """
    return "x".join(map(str, sizes)) or "scalar"
