# SPDX-License-Identifier: MIT
"""A picture of the report, by matplotlib: the cost of each subject as a multiple of C."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from .report import number
from .results import FLOOR, Row, Table

COLOURS = {"C": "tab:gray", "pyverbs": "tab:orange", "ibverbs": "tab:red", "cqnotify": "tab:blue"}
BAR = 0.24  # inches
LONG = 12.0


def colour(subject: str) -> str:
    return COLOURS.get(subject.replace(",", " ").split()[0], "tab:green")


def shown(table: Table) -> list[Row]:
    """Return the rows above the floor, which is the line at 1, or all where there is none."""
    over = [row for row in table.rows if row.over_floor is not None and row.subject != FLOOR]
    return over or table.rows


def draw(axes: Axes, table: Table) -> None:
    rows = shown(table)
    over = rows[0].over_floor is not None
    values = [row.over_floor or row.cost for row in rows]
    several = len({row.case for row in rows}) > 1
    labels = [f"{row.case}   {row.subject}" if several else row.subject for row in rows]
    places = range(len(rows))
    axes.barh(places, values, color=[colour(row.subject) for row in rows])
    axes.set_yticks(places, labels)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_title(f"{table.benchmark.title} ({table.about['place']})", loc="left", fontsize=10)
    axes.set_xlabel(f"x {FLOOR}, {table.unit}" if over else f"{table.unit} / {table.benchmark.op}")
    if over:
        axes.axvline(1, color="black", linewidth=1)
    if max(values) > 20 * min(values) > 0:
        axes.set_xscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.margins(x=0.15)
    for place, value in zip(places, values, strict=True):
        axes.annotate(
            number(value), (value, place), xytext=(3, 0), textcoords="offset points", va="center"
        )
    for i in range(1, len(rows)):
        if rows[i].case != rows[i - 1].case:
            axes.axhline(i - 0.5, color="0.8", linewidth=0.8)


def height(table: Table) -> float:
    return 1 + BAR * len(shown(table))


def in_columns(tables: Sequence[Table]) -> list[Sequence[Table]]:
    """Split the tables into two columns if one would be too long."""
    half, done = sum(map(height, tables)) / 2, 0.0
    for i, table in enumerate(tables):
        done += height(table)
        if done >= half > LONG / 2 and i + 1 < len(tables):
            return [tables[: i + 1], tables[i + 1 :]]
    return [tables]


def save(tables: Sequence[Table], path: str) -> None:
    """Draw the tables into an SVG or PNG file."""
    columns = in_columns(tables)
    tall = max(sum(map(height, column)) for column in columns)
    figure = Figure(figsize=(9 * len(columns), tall), layout="constrained")
    parts = figure.subfigures(1, len(columns), squeeze=False)[0]
    for part, column in zip(parts, columns, strict=True):
        heights = [height(table) for table in column]
        rest = max(tall - sum(heights), 0.01)
        grid = part.subplots(len(column) + 1, 1, squeeze=False, height_ratios=[*heights, rest])
        for axes, table in zip(grid[:, 0], column, strict=False):
            draw(axes, table)
        grid[-1, 0].set_axis_off()
    figure.savefig(path)
