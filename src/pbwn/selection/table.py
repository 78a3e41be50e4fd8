"""Tables as plain text and as HTML, rows folded over the indices of repeated blocks; words for counts and shapes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True)
class Table:
    """A header and rows; the columns named in `right` are aligned to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    right: Sequence[str] = ()

    def text(self, max_rows: int | None = None) -> str:
        """The table as plain text, as wide as its content.

        >>> print(Table(["name", "n"], [["a", 5], ["bc", 1200]], right=["n"]).text())
        name      n
        ----  -----
        a         5
        bc    1,200
        """
        shown = self.rows[:max_rows]
        cells = [list(self.header), *([_cell(cell) for cell in row] for row in shown)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.header))]
        cells.insert(1, ["-" * width for width in widths])
        lines = [
            "  ".join(
                cell.rjust(width) if name in self.right else cell.ljust(width)
                for cell, width, name in zip(row, widths, self.header, strict=True)
            ).rstrip()
            for row in cells
        ]
        if len(shown) < len(self.rows):
            lines.append(f"... and {plural(len(self.rows) - len(shown), 'more row')}")
        return "\n".join(lines)

    def html(self) -> str:
        """The table as an HTML element."""
        aligned = [' style="text-align: right"' if name in self.right else "" for name in self.header]
        head = "".join(f"<th>{escape(name)}</th>" for name in self.header)
        body = "".join(
            "<tr>"
            + "".join(f"<td{align}>{escape(_cell(cell))}</td>" for align, cell in zip(aligned, row, strict=True))
            + "</tr>"
            for row in self.rows
        )
        return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _cell(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def fold(rows: Sequence[T], name: Callable[[T], str], same: Callable[[T], object]) -> list[tuple[str, list[T]]]:
    """Join rows that are the same but for indices in their names; each with a name that stands for all of them.

    >>> fold(["a.0.w", "a.1.w", "b", "a.2.w"], name=str, same=lambda row: None)
    [('a.{0..2}.w', ['a.0.w', 'a.1.w', 'a.2.w']), ('b', ['b'])]
    """
    groups: dict[object, list[tuple[tuple[frozenset[int], ...], list[int]]]] = {}
    for position, row in enumerate(rows):
        parts = name(row).split(".")
        indices = tuple(frozenset([int(part)]) for part in parts if _is_index(part))
        template = tuple(None if _is_index(part) else part for part in parts)
        groups.setdefault((template, same(row)), []).append((indices, [position]))
    joined: list[tuple[int, str, list[T]]] = []
    for (template, _), boxes in groups.items():  # type: ignore[misc]
        for dimension in reversed(range(len(boxes[0][0]))):
            boxes = _joined_along(dimension, boxes)
        for indices, positions in boxes:
            ranges = iter(indices)
            full = ".".join(_index_range(next(ranges)) if part is None else part for part in template)
            joined.append((positions[0], full, [rows[position] for position in positions]))
    return [(full, members) for _, full, members in sorted(joined, key=lambda each: each[0])]


def folded(names: Iterable[str]) -> list[str]:
    """Names, those that differ in an index alone as one.

    >>> folded(["head", "embed.0", "embed.1", "embed.3"])
    ['head', 'embed.{0, 1, 3}']
    """
    return [name for name, _ in fold(list(dict.fromkeys(names)), name=str, same=lambda name: None)]


def _is_index(part: str) -> bool:
    return part.isascii() and part.isdigit()


def _joined_along(
    dimension: int, boxes: list[tuple[tuple[frozenset[int], ...], list[int]]]
) -> list[tuple[tuple[frozenset[int], ...], list[int]]]:
    """Join what differs along one dimension alone."""
    groups: dict[tuple[object, ...], tuple[set[int], list[int]]] = {}
    for indices, positions in boxes:
        key = (indices[:dimension], indices[dimension + 1 :])
        along, members = groups.setdefault(key, (set(), []))
        along |= indices[dimension]
        members += positions
    return [
        ((*before, frozenset(along), *after), sorted(members))  # type: ignore[misc]
        for (before, after), (along, members) in groups.items()
    ]


def _index_range(indices: frozenset[int]) -> str:
    """Such as 3, {0, 1} or {0..11, 14}."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    items = [f"{run[0]}..{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return items[0] if len(indices) == 1 else f"{{{', '.join(items)}}}"


def plural(count: int, noun: str) -> str:
    """The count with its noun.

    >>> plural(1, "neuron"), plural(1200, "neuron")
    ('1 neuron', '1,200 neurons')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def percent(part: int, whole: int) -> str:
    """A share, rounded, but not to nothing or to all.

    >>> percent(1, 3), percent(1, 1000), percent(999, 1000), percent(5, 5)
    ('33 %', '< 1 %', '> 99 %', '100 %')
    """
    rounded = round(100 * part / whole) if whole else 0
    if rounded == 0 and part:
        return "< 1 %"
    return "> 99 %" if rounded == 100 and part < whole else f"{rounded} %"


def shape_text(sizes: Sequence[int]) -> str:
    """A tensor's shape.

    >>> shape_text((8, 4, 3, 3)), shape_text(())
    ('8x4x3x3', 'scalar')
    """
    return "x".join(map(str, sizes)) or "scalar"
