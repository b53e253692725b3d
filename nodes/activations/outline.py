"""The catalog of a network as plain data, for the map that one clicks on."""

from __future__ import annotations

from . import listing, published, selection
from .entries import Entry

_MARKS = ("filter", "pool")


def outline(entries: list[Entry]) -> dict:
    """``activations``: [ID, channels or None, scale, "filter", "pool" or ""] in forward order; ``groups``: the place
    of each ("" for the network itself) with the numbers of its activations; ``presets``: their numbers by preset, or
    a sentence where a preset is not for this network; ``architecture``: the paper's name of it, or None.
    """
    name = published.architecture(entries)
    rows = published.table(name) if name else {}
    activations = [[entry.id, entry.channels, entry.scale, _mark(rows.get(entry.id, {}))] for entry in entries]
    groups: dict[str, list[int]] = {}
    for number, entry in enumerate(entries):
        groups.setdefault(listing.place_of(entry) or "", []).append(number)
    numbers = {entry.id: number for number, entry in enumerate(entries)}
    return {
        "architecture": name,
        "activations": activations,
        "groups": [{"place": place, "members": members} for place, members in groups.items()],
        "presets": {preset: _chosen(entries, preset, numbers) for preset in selection.PRESETS
                    if preset != selection.LIST},
    }  # fmt: skip


def _mark(row: dict[str, str]) -> str:
    return next((mark for mark in _MARKS if row.get(mark) == "1"), "")


def _chosen(entries: list[Entry], preset: str, numbers: dict[str, int]) -> list[int] | str:
    try:
        return [numbers[entry.id] for entry in selection.select(entries, preset)]
    except selection.NoSuchActivationError as error:
        return str(error)
