"""Tables as plain text and HTML, folding of rows over indices in their names, and text for counts and shapes."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias, TypeVar

T = TypeVar("T")
_WIDTH = 88  # of printed sentences
# The index of a module in its container, and that of a layer inside a recurrent module, as in weight_ih_l0_reverse.
_INDEX = re.compile(r"((?<![^.])[0-9]+(?![^.])|(?<=_l)[0-9]+(?![^._]))")
# The positions of rows that are folded into one, by the parts of their name and their other common content.
Groups: TypeAlias = "dict[tuple[tuple[str, ...], object], list[int]]"


@dataclass(frozen=True)
class Table:
    """A header and rows; the columns named in `right` are aligned to the right."""

    header: Sequence[str]
    rows: Sequence[Sequence[object]]
    right: Sequence[str] = ()

    def text(self, max_rows: int | None = None) -> str:
        """Return the table as plain text, as wide as its content.

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
        """Return the table as an HTML element."""
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
    """Join rows that differ only in indices in their names, each group with a name for all of them.

    >>> fold(["a.0.w", "a.1.w", "b", "a.2.w"], name=str, same=lambda row: None)
    [('a.{0..2}.w', ['a.0.w', 'a.1.w', 'a.2.w']), ('b', ['b'])]
    """
    groups: Groups = {}
    for position, row in enumerate(rows):
        groups.setdefault((tuple(_INDEX.split(name(row))), same(row)), []).append(position)
    for part in reversed(range(1, max((len(parts) for parts, _ in groups), default=0), 2)):  # every second is an index
        groups = _joined_at(part, groups)
    in_order = sorted(groups.items(), key=lambda group: group[1])
    return [("".join(parts), [rows[position] for position in members]) for (parts, _), members in in_order]


def _joined_at(part: int, groups: Groups) -> Groups:
    """Join groups that differ only in the index at one part of the name."""
    joined: Groups = {}
    alike: dict[tuple[tuple[str, ...], tuple[str, ...], object], tuple[set[int], list[int]]] = {}
    for (parts, same), positions in groups.items():
        if part < len(parts):
            indices, members = alike.setdefault((parts[:part], parts[part + 1 :], same), (set(), []))
            indices.add(int(parts[part]))
            members += positions
        else:
            joined[parts, same] = positions
    for (before, after, same), (indices, members) in alike.items():
        joined[(*before, _index_range(indices), *after), same] = sorted(members)
    return joined


def folded(names: Iterable[str]) -> list[str]:
    """Return names, with those that differ only in an index as one.

    >>> folded(["head", "embed.0", "embed.1", "embed.3"])
    ['head', 'embed.{0, 1, 3}']
    """
    return [name for name, _ in fold(list(dict.fromkeys(names)), name=str, same=lambda name: None)]


def _index_range(indices: set[int]) -> str:
    """Format indices, such as 3, {0, 1} or {0..11, 14}."""
    runs: list[list[int]] = []
    for index in sorted(indices):
        if runs and runs[-1][-1] == index - 1:
            runs[-1].append(index)
        else:
            runs.append([index])
    items = [f"{run[0]}..{run[-1]}" if len(run) > 2 else ", ".join(map(str, run)) for run in runs]
    return items[0] if len(indices) == 1 else f"{{{', '.join(items)}}}"


def plural(count: int, noun: str) -> str:
    """Return a count with its noun.

    >>> plural(1, "neuron"), plural(1200, "neuron")
    ('1 neuron', '1,200 neurons')
    """
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def percent(part: int, whole: int) -> str:
    """Return a rounded percentage, 0 % and 100 % only where they are exact.

    >>> percent(1, 3), percent(1, 1000), percent(999, 1000), percent(5, 5)
    ('33 %', '< 1 %', '> 99 %', '100 %')
    """
    rounded = round(100 * part / whole) if whole else 0
    if rounded == 0 and part:
        return "< 1 %"
    return "> 99 %" if rounded == 100 and part < whole else f"{rounded} %"


def tied_names(name: str, others: Sequence[str]) -> str:
    """Return a name with those that it is tied to.

    >>> tied_names("a", []), tied_names("a", ["b", "c"]), tied_names("a", ["b", "c", "d", "e"])
    ('a', 'a (= b, c)', 'a (= b, c, 2 more)')
    """
    shown = others if len(others) <= 3 else [*others[:2], f"{len(others) - 2} more"]
    return f"{name} (= {', '.join(shown)})" if shown else name


def wrapped(sentence: str) -> str:
    """Wrap a sentence to the width of a terminal."""
    return textwrap.fill(sentence, _WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)


def shape_text(sizes: Sequence[int]) -> str:
    """Format a tensor's shape.

    >>> shape_text((8, 4, 3, 3)), shape_text(())
    ('8x4x3x3', 'scalar')
    """
    return "x".join(map(str, sizes)) or "scalar"
