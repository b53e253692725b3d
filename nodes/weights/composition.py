"""New people composed of the values that members have: skin of one, hair of another.

Members' coefficients B (n, k) are explained by the values of their attributes, X as one column for
each value: ridge regression W = (X'X + I)^-1 X'(B - mean) on centered columns. A new point is

    mean + sum over attributes a of x_a W_a + (spread / 2) (residual of one member),

with x_a the centered columns of another random member's value of a, or of the value requested. The
normal law of `points.sample` lies between the values that people have, this law on them.
"""

from __future__ import annotations

import difflib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from ..common.named_strengths import parse_names
from .space import Point, Space

#: Of the residual at a spread of 1: a whole one is a member's own.
RESIDUAL = 0.5
#: Labels take the place of values where they explain at least so much of the coefficients'
#: variance: with less, composed points are no more consistent than those of the normal law
#: (`python run.py study weights composition`).
LEAST_EXPLAINED = 0.8
PENALTY = 1.0
#: Two labels that no member has both of exclude each other if chance alone would give so many.
_EXPECTED = 3.0
_ROWS = 4096

#: Attribute -> the value of each member, "" where it is unknown.
Values = dict[str, tuple[str, ...]]

_COLORS = ("black", "brown", "blonde", "red", "pink", "gray", "platinum")
_HAIR = ("big", "short", "curly", "long", "flat", "straight")
_STYLES = ("bald", "bob", "bun", "dreads", "afro", "undercut", "mohawk", "quiff")
#: The faces of the demo world, part by part: the word in the file -> the value.
FACE_WORDS: dict[str, dict[str, str]] = {
    "skin": {word: f"{word} skin" for word in ("pale", "light", "tanned", "brown", "black")},
    "hair": {word: f"{word} hair" for word in _HAIR} | {word: word for word in _STYLES},
    "hair color": {word: f"{word} hair" for word in _COLORS},
    "facial hair": {
        "none": "shaven",
        "light-beard": "light beard",
        "majestic-beard": "majestic beard",
        "moustache": "moustache",
    },
    "accessory": {
        "none": "no glasses",
        "round-glasses": "round glasses",
        "sunglasses": "sunglasses",
    },
}
_FACE = re.compile(
    "-".join(
        f"(?P<{attribute.replace(' ', '_')}>{'|'.join(words)})"
        for attribute, words in FACE_WORDS.items()
    )
)


@dataclass(frozen=True, kw_only=True)
class Composition:
    """The law of composed points, fitted to the ``rows`` of a space's members whose values are all
    known.

    ``values``: attribute -> the value of each row. ``effects``: attribute -> value -> what it
    adds to the mean, float64 (k,). ``explained``: the adjusted fraction of the variance of
    coefficients that values explain.
    """

    space: Space
    rows: list[int]
    values: Values
    mean: torch.Tensor
    effects: dict[str, dict[str, torch.Tensor]]
    explained: float

    def combined(self, chosen: Mapping[str, str]) -> torch.Tensor:
        """The mean coefficients (k,) of people of these values, one for each attribute."""
        effects = [self.effects[attribute][value] for attribute, value in chosen.items()]
        return self.mean + torch.stack(effects).sum(dim=0)

    def residual(self, place: int) -> torch.Tensor:
        """What is a member's own (k,): its coefficients less the combination of its values."""
        chosen = {attribute: values[place] for attribute, values in self.values.items()}
        coefficients = self.space.coefficients[self.rows[place]].double()
        return coefficients - self.combined(chosen)


@dataclass(frozen=True, kw_only=True)
class ComposedPoint:
    """A point, and the value of each attribute that it was composed of."""

    point: Point
    values: dict[str, str]


def fit(space: Space) -> Composition:
    """The law of a space whose members' values are known, or whose labels say as much.

    Raises ValueError with one sentence for any other space.
    """
    values = face_values(space.about.get("faces") or ())
    if _complete(values, len(space.members)):
        return fit_values(space, values)
    groups = label_values(space)
    law = fit_values(space, groups) if groups else None
    if law and law.explained >= LEAST_EXPLAINED:
        return law
    reason = "its members have no labels"
    if law:
        reason = f"its labels explain {law.explained:.0%} of the coefficients"
    raise ValueError(
        f"The space {space.name} does not tell the values of its members' attributes ({reason}, "
        f"and composing needs {LEAST_EXPLAINED:.0%}): set source to near_members, or label more "
        "attributes by W2W Label Members and W2W Fit Directions."
    )


def can_compose(space: Space) -> bool:
    """Whether ``fit`` finds a law."""
    try:
        fit(space)
    except ValueError:
        return False
    return True


def fit_values(space: Space, values: Values) -> Composition:
    """Ridge regression of the coefficients on values, over the members whose values are all known,
    one at least; in blocks of members.
    """
    rows = _complete(values, len(space.members))
    selected = {name: tuple(column[row] for row in rows) for name, column in values.items()}
    names: list[tuple[str, str]] = []
    for attribute, column in selected.items():
        names += [(attribute, value) for value in dict.fromkeys(column)]
    columns = torch.zeros(len(rows), len(names), dtype=torch.float64)
    for number, (attribute, value) in enumerate(names):
        columns[:, number] = torch.tensor([each == value for each in selected[attribute]]).double()
    columns -= columns.mean(dim=0)
    index = torch.tensor(rows)
    mean = torch.zeros(space.known, dtype=torch.float64)
    for block_rows in index.split(_ROWS):
        mean += space.coefficients[block_rows].double().sum(dim=0) / len(rows)
    products = torch.zeros(len(names), space.known, dtype=torch.float64)
    total = 0.0
    for block_rows, block in zip(index.split(_ROWS), columns.split(_ROWS), strict=True):
        centered = space.coefficients[block_rows].double() - mean
        products += block.T @ centered
        total += float(centered.square().sum())
    gram = columns.T @ columns
    penalty = PENALTY * torch.eye(len(names), dtype=torch.float64)
    weights = torch.linalg.solve(gram + penalty, products)
    explained = float(2 * (weights * products).sum() - (weights * (gram @ weights)).sum())
    freedom = len(rows) - 1 - int(torch.linalg.matrix_rank(gram))
    adjusted = -math.inf
    if freedom > 0:
        adjusted = 1 - (1 - explained / max(total, 1e-300)) * (len(rows) - 1) / freedom
    effects: dict[str, dict[str, torch.Tensor]] = {}
    for attribute, column in selected.items():
        places = [place for place, (name, _) in enumerate(names) if name == attribute]
        shares = [column.count(names[place][1]) / len(rows) for place in places]
        center = torch.tensor(shares, dtype=torch.float64) @ weights[places]
        effects[attribute] = {names[place][1]: weights[place] - center for place in places}
    return Composition(
        space=space,
        rows=rows,
        values=selected,
        mean=mean,
        effects=effects,
        explained=adjusted,
    )


def face_values(faces: Sequence[str]) -> Values:
    """The values in faces of the demo world, such as "black-afro-red-none-round-glasses"; "" where
    a text is no such face.
    """
    matched = [_FACE.fullmatch(face) for face in faces]
    values: Values = {}
    for attribute, words in FACE_WORDS.items():
        group = attribute.replace(" ", "_")
        values[attribute] = tuple("" if each is None else words[each[group]] for each in matched)
    return values


def label_values(space: Space) -> Values:
    """Labels as values: labels that exclude each other are values of one attribute, and so is
    "no ..." of a member that has none of them. A label counts above the middle of its range.
    """
    classes: dict[str, torch.Tensor] = {}
    labeled = torch.ones(len(space.members), dtype=torch.bool)
    for name, column in space.labels.items():
        finite = column.isfinite()
        if len(column[finite].unique()) > 1:
            labeled &= finite
            middle = (column[finite].min() + column[finite].max()) / 2
            classes[name] = column > middle
    values: Values = {}
    for group in _alternatives({name: column[labeled] for name, column in classes.items()}):
        names = [f"no {' or '.join(group)}"] * len(space.members)
        for name in group:
            for row in classes[name].nonzero().flatten().tolist():
                names[row] = name
        for row in (~labeled).nonzero().flatten().tolist():
            names[row] = ""
        values[" or ".join(group)] = tuple(names)
    return values if _complete(values, len(space.members)) else {}


def compose(
    law: Composition, seed: int, count: int, components: int, spread: float, person: str = ""
) -> list[ComposedPoint]:
    """``count`` points of a law; ``person`` names values that all of them get, separated by commas.

    A value that is requested takes the place of a random one and leaves the others of this seed as
    they are. Coefficients beyond ``components`` are 0.
    """
    requested = parse_person(law, person)
    components = min(components, law.space.known)
    generator = torch.Generator().manual_seed(seed)
    composed = []
    for number in range(count):
        chosen = {}
        for attribute, values in law.values.items():
            place = int(torch.randint(len(law.rows), (1,), generator=generator))
            chosen[attribute] = requested.get(attribute, values[place])
        place = int(torch.randint(len(law.rows), (1,), generator=generator))
        residual = RESIDUAL * spread * law.residual(place)
        coefficients = (law.combined(chosen) + residual)[:components].float()
        point = Point(law.space, law.space.pad(coefficients), f"composed {seed}.{number}")
        composed.append(ComposedPoint(point=point, values=chosen))
    return composed


def parse_person(law: Composition, text: str) -> dict[str, str]:
    """The value of each attribute that a text names; raises ValueError for others, and for two of
    one attribute.
    """
    attribute_of: dict[str, tuple[str, str]] = {}
    for attribute, effects in law.effects.items():
        for value in effects:
            attribute_of[_plain(value)] = attribute, value
    requested: dict[str, str] = {}
    for name in parse_names(text):
        if _plain(name) not in attribute_of:
            raise ValueError(_unknown(law, name))
        attribute, value = attribute_of[_plain(name)]
        if attribute in requested:
            raise ValueError(
                f"person names two values of {attribute}, {requested[attribute]!r} and {value!r}: "
                "remove one of them."
            )
        requested[attribute] = value
    return requested


def _unknown(law: Composition, name: str) -> str:
    values = [value for effects in law.effects.values() for value in effects]
    words = set(_plain(name).split())
    near = [value for value in values if words & set(_plain(value).split())]
    near = near or difflib.get_close_matches(name, values, n=5, cutoff=0.0)
    return (
        f"person names {name!r}, and no member of {law.space.name} has this value; the nearest "
        f"values are {', '.join(near)}."
    )


def _complete(values: Mapping[str, Sequence[str]], members: int) -> list[int]:
    """The members whose every value is known; none where a list is not as long as the members."""
    columns = list(values.values())
    if not columns or any(len(column) != members for column in columns):
        return []
    return [row for row in range(members) if all(column[row] for column in columns)]


def _alternatives(classes: Mapping[str, torch.Tensor]) -> list[list[str]]:
    """Names of labels, bool (n,) each, in groups whose labels exclude each other."""
    groups: list[list[str]] = []
    for name, column in classes.items():
        fitting = (group for group in groups if _excluded(column, group, classes))
        group = next(fitting, None)
        if group is None:
            groups.append([name])
        else:
            group.append(name)
    return groups


def _excluded(
    column: torch.Tensor, group: Sequence[str], classes: Mapping[str, torch.Tensor]
) -> bool:
    return all(_exclude(column, classes[name]) for name in group)


def _exclude(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether no member has both labels, where chance would give some both."""
    expected = float(first.double().mean() * second.double().mean()) * len(first)
    return expected >= _EXPECTED and not bool((first & second).any())


def _plain(text: str) -> str:
    return " ".join(text.casefold().split())
