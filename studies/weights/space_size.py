"""How many members and components a space needs: entanglement of directions, and people found in
it.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import numpy as np
import torch

from ..common import results
from .editing import judged
from .inversion import ONE, find, held_out
from .people import encode
from .setup import EDITS, Study, directed, factors, identity, prompts, truth

DRAWS = 8
FIXED = 32  # components that directions of spaces of every size are fitted on


def measure(study: Study, count: int, draws: int = DRAWS) -> dict[str, dict]:
    """Entanglement and inversion against members; identity, entanglement and edits against
    components.
    """
    return _members(study, count, draws) | _components(study)


def _members(study: Study, count: int, draws: int) -> dict[str, dict]:
    whole, numbers = len(study.space.members), {}
    group = held_out(count)
    data, known, texts = encode(group, study.sampler.generator), truth(group), prompts(group)
    for size in dict.fromkeys(max(12, whole // part) for part in (8, 4, 2, 1)):
        spaces = [subset(study.space, size, draw) for draw in range(draws if size < whole else 1)]
        for label, made in (
            ("", spaces),
            (", permuted labels", [permuted(space) for space in spaces]),
        ):
            angle = float(np.mean([entanglement(space, FIXED) for space in made]))
            what = (
                f"absolute cosine of two of four directions fitted on {FIXED} components, mean "
                "over subsets"
            )
            numbers[f"{size} members{label}: entanglement"] = results.number(
                angle, len(EDITS), "cosine", what
            )
        if size in (max(12, whole // 8), whole):
            flats, _ = find(study.sampler, spaces[0], data, ONE)
            numbers[f"{size} members: inverted identity"] = identity(
                study.read(flats, texts)[0], known
            )
    return numbers


def _components(study: Study) -> dict[str, dict]:
    space, numbers = study.space, {}
    group, lacking = study.members(), study.members(without="beard")
    rows = torch.stack([point.coefficients for point in study.points(group)])
    texts, known = prompts(group), truth(group)
    points = study.points(lacking)
    before, _ = study.read(factors(points), prompts(lacking))
    for count in dict.fromkeys(
        min(number, space.components) for number in (4, 16, 48, space.components)
    ):
        cut = torch.nn.functional.pad(rows[:, :count], (0, space.components - count))
        flats = torch.stack([space.rebuild(row) for row in cut])
        seen, _ = study.read(flats, texts)
        numbers[f"{count} components: member identity"] = identity(seen, known)
        what = (
            "absolute cosine of two of four fitted directions; of two random vectors .8 over the "
            "root of components"
        )
        numbers[f"{count} components: entanglement"] = results.number(
            float(entanglement(space, count).mean()), len(EDITS), "cosine", what
        )
        if count in (16, space.components):
            fitted = replace(study, space=directed(space, count))
            edited = fitted.edited(fitted.points(lacking), "beard: 1", study.preserved("beard"))
            after, _ = study.read(edited, prompts(lacking))
            numbers |= judged(after, before, lacking, "beard", f"W2W 1.0 by {count} components")
    return numbers


def subset(space, size: int, draw: int):
    """The space of some of its members, drawn again for each ``draw``; standardized as the whole
    is.
    """
    rows = np.random.default_rng([7, size, draw]).permutation(len(space.members))[:size]
    chosen = torch.from_numpy(np.sort(rows))
    center = space.coefficients[chosen].mean(dim=0)
    left, values, right = torch.linalg.svd(space.coefficients[chosen] - center, full_matrices=False)
    kept = min(size - 1, len(values))
    basis = space.rows(0, space.components)
    return replace(
        space,
        mean=space.mean + space.deviation * (center @ basis),
        basis=right[:kept] @ basis,
        basis_scale=None,
        coefficients=(left * values)[:, :kept],
        members=tuple(space.members[row] for row in chosen),
        singular_values=values[:kept],
        labels={name: column[chosen] for name, column in space.labels.items()},
        kept=None,
        squares=None,
        directions={},
        about={**space.about, "total_squares": None},
    )


def permuted(space):
    """The space with the labels of its members given to others: what directions of no meaning look
    like.
    """
    order = torch.from_numpy(np.random.default_rng(11).permutation(len(space.members)))
    return replace(space, labels={name: column[order] for name, column in space.labels.items()})


def entanglement(space, components: int) -> np.ndarray:
    """|cos| of every pair of the study's directions: what they share, though the attributes were
    drawn apart.
    """
    vectors = [
        one.vector / one.vector.norm() for one in directed(space, components).directions.values()
    ]
    return np.array([abs(float(one @ other)) for one, other in combinations(vectors, 2)])
