"""Attribute directions of a space: fitting them and steps along them (arXiv 2406.09413, section 3.3
and appendix F).

The paper's fit is least squares of the labels on the first coefficients, without an intercept. The
paper's strength is the largest projection of a training member onto the unit direction: that is a
strength of 1 here.

A direction repeats when fits to two halves of the members agree: its reliability is the mean cosine
over random halves, and its floor that of permuted labels, the mean and 2.5 standard deviations.
Near copies, such as checkpoints of one training, are one member with their mean: else they stand on
both sides of a fold or of halves.
"""

from __future__ import annotations

import difflib
import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum
from types import ModuleType
from typing import Any

import numpy as np
import torch

from ..common import named_strengths
from .member_groups import group_means
from .space import Direction, Reach, Space


class FitMethod(StrEnum):
    """How the direction of an attribute is fitted to labels."""

    LEAST_SQUARES = "least_squares"
    MEAN_DIFFERENCE = "mean_difference"
    SVM = "svm"
    LOGISTIC_REGRESSION = "logistic_regression"
    RIDGE = "ridge"
    MOST_RELIABLE = "most_reliable"
    CONDITIONAL_DIFFERENCE = "conditional_difference"


class Units(StrEnum):
    """What a strength of 1 is: the largest projection of a member, or the vector as fitted
    (official notebooks).
    """

    MAX_PROJECTION = "max_projection"
    RAW = "raw"


class Debiasing(StrEnum):
    """How a direction is made orthogonal to others: to all of them, or to one after another as in
    the official code.
    """

    JOINT = "joint"
    SEQUENTIAL = "sequential"


_FOLDS = 5
# At 2, 6 of 100 random labels of sixty people passed.
_DEVIATIONS = 2.5
_HALVINGS = 5
_PERMUTATIONS = 10
_HALVED_MEMBERS = 4000
#: A support vector machine was never the most reliable on the demo world, and takes longer than the
#: others together.
_COMPARED = (FitMethod.MEAN_DIFFERENCE, FitMethod.RIDGE, FitMethod.LEAST_SQUARES)
_PENALTIES = np.logspace(
    -3, 2, 11
)  # in units of the coefficients' mean squared norm over the members
_FEWEST_COMPONENTS = 8
_PC = "PC "


def fit(
    space: Space,
    labels: dict[str, torch.Tensor],
    components: int,
    method: str,
    check_stop: Callable[[], None] = lambda: None,
    beside: dict[str, torch.Tensor] | None = None,
) -> dict[str, Direction]:
    """A direction for every attribute: ``labels`` float (n,) each, NaN where unknown; further
    coefficients are 0.

    ``beside``: further labels that CONDITIONAL_DIFFERENCE holds fixed, as it does the other
    attributes. ``check_stop`` is called before each fit and may raise. Raises ValueError for an
    attribute with a single value.
    """
    components = min(components, space.known)
    directions = {}
    for name, values in labels.items():
        known = torch.isfinite(values)
        members = [
            member for member, labeled in zip(space.members, known.tolist(), strict=True) if labeled
        ]
        labeled_rows = torch.cat(
            [space.coefficients[known, :components], values[known, None]], dim=1
        ).double()
        rows = group_means(labeled_rows, members, space.groups).numpy()
        numbers = rows[:, :-1]
        target = rows[:, -1]
        if len(np.unique(target)) < 2:
            raise ValueError(
                f"{name!r} has one value for all members: a direction needs members with and "
                "without it."
            )
        check_stop()
        chosen = method
        if method == FitMethod.MOST_RELIABLE:
            chosen = (
                FitMethod.CONDITIONAL_DIFFERENCE
                if space.learned
                else choose_method(numbers, target, check_stop)
            )
        own = target
        if chosen == FitMethod.CONDITIONAL_DIFFERENCE:
            held = [
                column for other, column in {**(beside or {}), **labels}.items() if other != name
            ]
            others = torch.stack([values, *held], dim=1)[known, 1:].double()
            own = without_others(target, list(group_means(others, members, space.groups).numpy().T))
        vector = torch.from_numpy(fit_normal(numbers, own, chosen)).float()
        vector = torch.nn.functional.pad(vector, (0, space.components - components))
        accuracy, majority = _cross_validate(
            numbers, target, method=chosen, check_stop=check_stop, own=own
        )
        reliability, floor = split_half(numbers, target, chosen, check_stop, own=own)
        grouped = f" in {len(target)} groups of near copies" if len(target) < len(members) else ""
        about = f"{chosen}, {len(members)} members{grouped}, {components} components; "
        if math.isnan(accuracy):
            about += "too few members with and without it for cross-validation"
        else:
            about += (
                f"cross-validated accuracy {accuracy:.3f} (always the more frequent value: "
                f"{majority:.3f}), {_reliability_text(reliability, floor)}"
            )
        noise = not (accuracy > majority and reliability > floor)
        directions[name] = Direction(vector, max_projection(space, vector), about, noise)
    return directions


def _reliability_text(reliability: float, floor: float) -> str:
    if math.isnan(reliability) or math.isnan(floor):
        return "too few members with and without it for a split-half reliability"
    return f"split-half reliability {reliability:.2f} (permuted labels: below {floor:.2f})"


def drop_constant_labels(
    labels: dict[str, torch.Tensor],
) -> tuple[dict[str, torch.Tensor], list[str]]:
    """The attributes with more than one value, and a remark on each of the others.

    Raises ValueError when none is left.
    """
    kept = {
        name: values
        for name, values in labels.items()
        if len(values[torch.isfinite(values)].unique()) > 1
    }
    if not kept:
        raise ValueError(
            "Every attribute has one value for all members: a direction needs members with and "
            "without."
        )
    return kept, [
        f"No direction for {name}: it has one value for all members."
        for name in labels
        if name not in kept
    ]


def max_projection(space: Space, vector: torch.Tensor) -> float:
    """The largest projection of a training member onto the unit direction."""
    return float(
        (space.coefficients @ (vector / vector.norm().clamp_min(1e-30))[: space.known]).max()
    )


def slider_ranges(space: Space) -> dict:
    """What a slider for each direction needs, as plain data for the canvas.

    The space's ``name``, its ``directions``, the ``labels`` that directions can be fitted to, and
    the number of ``components``, PC 1 to PC n. ``low`` and ``high`` of a direction are the members'
    extreme projections in units of the largest one, which is a strength of 1; ``raw`` is that
    strength in units of the fitted vector; ``noise`` and ``about`` are those of the direction, and
    ``reached`` and ``appears`` those of its reach, where that was measured; ``measured`` has them
    for directions that are yet to be fitted. Directions that reach more people come first.
    """
    ranges = []
    reaches = {name: one.reach for name, one in space.directions.items()}
    for name in by_reach(reaches):
        direction = space.directions[name]
        norm = float(direction.vector.norm())
        largest = direction.max_projection
        low = -1.0
        raw = 1.0
        if norm and largest:
            ends = [end / largest for end in space.projections[name]]
            low = min(*ends, 0.0)
            raw = largest / norm
        quality = {"noise": direction.noise, "about": direction.about}
        if direction.reach is not None:
            quality |= _outline(direction.reach)
        ranges.append({"name": name, "low": low, "high": 1.0, "raw": raw, **quality})
    return {
        "name": space.name,
        "directions": ranges,
        "labels": by_reach({name: space.reaches.get(name) for name in space.labels}),
        "measured": {name: _outline(reach) for name, reach in space.reaches.items()},
        "components": space.known,
    }


def _outline(reach: Reach) -> dict[str, Any]:
    return {"reached": reach.reached, "appears": list(reach.appears)}


def by_reach(reaches: Mapping[str, Reach | None]) -> list[str]:
    """Names of directions, those that reach more people first, then those without a measurement."""

    def order(name: str) -> float:
        reach = reaches[name]
        return 0.0 if reach is None else -1.0 - reach.reached

    return sorted(reaches, key=order)


def direction_step(
    space: Space, name: str, preserved: Sequence[str], raw: bool, debiasing: str = Debiasing.JOINT
) -> torch.Tensor:
    """``direction_steps`` of one name, (k,)."""
    return direction_steps(space, [name], preserved=preserved, raw=raw, debiasing=debiasing)[0]


def direction_steps(
    space: Space,
    names: Sequence[str],
    preserved: Sequence[str],
    raw: bool,
    debiasing: str = Debiasing.JOINT,
) -> torch.Tensor:
    """The changes of coefficients (names, k) for a strength of 1 along each direction.

    A name such as "PC 3" is a component, and the strength counts its standard deviations over the
    members. Else a strength of 1 is the largest projection of a training member, or with ``raw``
    the vector as it was fitted or released. ``preserved`` names directions that a change is made
    orthogonal to, itself excepted.
    """
    vectors: list[torch.Tensor] = []
    scaled: list[int] = []
    names = [_spelled(space, name) for name in names]
    preserved = [_spelled(space, name) for name in preserved]
    for name in names:
        axis = _component(space, name)
        fitted = get_direction(space, name).vector if axis is None else axis
        vector = debias(
            fitted,
            [get_direction(space, other).vector for other in preserved if other != name],
            debiasing,
        )
        if not raw and axis is None:
            if vector.norm() < 1e-6 * fitted.norm():
                raise ValueError(
                    f"Nothing is left of {name!r} without {', '.join(preserved)}: preserve fewer "
                    "attributes."
                )
            scaled.append(len(vectors))
        vectors.append(vector)
    steps = torch.stack(vectors)
    units = torch.nn.functional.normalize(steps[scaled])
    farthest = space.coefficients[(space.coefficients @ units[:, : space.known].T).argmax(0)]
    # A product of its own for each, so that it does not depend on the names beside it.
    largest = [
        float(member.double() @ unit[: space.known].double())
        for member, unit in zip(farthest, units, strict=True)
    ]
    steps[scaled] = units * torch.tensor(largest)[:, None]
    return steps


def with_reach(directions: dict[str, Direction], space: Space) -> dict[str, Direction]:
    """Directions as the space's own labels give them, with what each was measured to do."""
    found = {}
    for name, direction in directions.items():
        reach = space.reaches.get(name)
        if reach is not None:
            about = f"{direction.about}; {reach}"
            direction = replace(direction, about=about, reach=reach)
        found[name] = direction
    return found


def _spelled(space: Space, name: str) -> str:
    """A name as the space spells it, if it has it but for upper and lower case."""
    return named_strengths.matching_name(name, space.directions) or name


def _component(space: Space, name: str) -> torch.Tensor | None:
    """One standard deviation along the component of a name such as "PC 3"; None for other names."""
    if name in space.directions or not name.upper().startswith(_PC):
        return None
    number = name[len(_PC) :].strip()
    if not number.isdigit() or not 1 <= int(number) <= space.known:
        raise ValueError(f"There is no component {name!r}: write PC 1 to PC {space.known}.")
    step = torch.zeros(space.components)
    step[int(number) - 1] = space.spread[1][int(number) - 1]
    return step


def debias(
    vector: torch.Tensor, others: list[torch.Tensor], method: str = Debiasing.JOINT
) -> torch.Tensor:
    """A direction without what it has in common with others.

    Joint: orthogonal to all of them. Sequential: n <- n - (n.d / |d|^2) d for one after another, as
    the official code does, which leaves only the last exactly orthogonal.
    """
    if not others:
        return vector
    if method == Debiasing.SEQUENTIAL:
        for other in others:
            vector = vector - (vector @ other) / (other @ other) * other
        return vector
    basis, _ = torch.linalg.qr(torch.stack(others).double().T)
    exact = vector.double()
    return (exact - basis @ (basis.T @ exact)).float()


def get_direction(space: Space, name: str) -> Direction:
    """A direction by name, in upper or lower case; raises ValueError with the nearest names when
    there is none.
    """
    spelled = _spelled(space, name)
    if spelled in space.directions:
        return space.directions[spelled]
    if not space.directions:
        raise ValueError(
            f"The space {space.name} has no directions yet: put W2W Fit Directions after its "
            "loader, or name a component, such as PC 1."
        )
    near = difflib.get_close_matches(name, space.directions, n=5, cutoff=0.0)
    raise ValueError(
        f"The space {space.name} has no direction {name!r}; the nearest names are "
        f"{', '.join(near)}."
    )


def describe(directions: dict[str, Direction]) -> str:
    """A line for each direction: its largest projection, norm and quality of fit; then the most
    similar pairs.
    """
    lines = [
        f"{name}{' (noise)' if one.noise else ''}: largest projection {one.max_projection:.2f}, "
        f"norm {float(one.vector.norm()):.3g}; {one.about}"
        for name, one in directions.items()
    ]
    if noise := [name for name, one in directions.items() if one.noise]:
        lines.append(
            f"Noise, off in the sliders: {', '.join(noise)}. More labeled members or fewer "
            "components may help."
        )
    names = list(directions)
    vectors = torch.stack([one.vector for one in directions.values()])
    cosines = torch.nn.functional.normalize(vectors) @ torch.nn.functional.normalize(vectors).T
    pairs = [
        (float(cosines[i, j]), names[i], names[j]) for j in range(len(names)) for i in range(j)
    ]
    pairs = sorted(pairs, key=lambda pair: -abs(pair[0]))[:5]
    similar = [f"{first} and {second}: cosine {value:+.2f}" for value, first, second in pairs]
    return "\n".join([*lines, *(["Most similar:", *similar] if similar else [])])


def fit_normal(numbers: np.ndarray, target: np.ndarray, method: str) -> np.ndarray:
    """The vector (k,) that a method fits to labels (n,) of members' coefficients (n, k), of any
    length.
    """
    return FITTERS[method](numbers, target)


def fit_mean_difference(numbers: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Mean of the members with the attribute less that of those without."""
    classes = _binarize(target)
    return numbers[classes].mean(axis=0) - numbers[~classes].mean(axis=0)


def fit_conditional_difference(numbers: np.ndarray, target: np.ndarray) -> np.ndarray:
    """The slope of each coefficient on what ``without_others`` leaves of a label."""
    centered = target - target.mean()
    return centered @ numbers / max(float(centered @ centered), 1e-300)


def without_others(target: np.ndarray, others: Sequence[np.ndarray]) -> np.ndarray:
    """Labels (n,) less what the other labels say of them, by ridge regression with a penalty of one
    member.

    The slope of coefficients on what is left is that on all labels at once (Frisch and Waugh): how
    members differ who differ in this label alone. Unknown labels (NaN) count as their mean. A label
    that is the same in all members with this one, or in all without, is an alternative to it or a
    part of it, as red hair is to pink hair, and not held.
    """
    centered = target - target.mean()
    classes = _binarize(target)
    columns = [
        column - np.nanmean(column)
        for column in others
        if all(
            len(np.unique(side[np.isfinite(side)])) > 1
            for side in (column[classes], column[~classes])
        )
    ]
    if not columns:
        return centered
    held = np.nan_to_num(np.stack(columns, axis=1))
    gram = held.T @ held + np.eye(held.shape[1])
    return centered - held @ np.linalg.solve(gram, held.T @ centered)


def fit_ridge(numbers: np.ndarray, target: np.ndarray) -> np.ndarray:
    """Ridge regression with an intercept; number of components and penalty of the least
    leave-one-out error.

    Components beyond the chosen number are 0.
    """
    linear_model = _scikit_learn(FitMethod.RIDGE).linear_model
    most = numbers.shape[1]
    fits = []
    powers = [_FEWEST_COMPONENTS * 2**step for step in range(most.bit_length())]
    for kept in [*(power for power in powers if power < most), most]:
        x = numbers[:, :kept]
        unit = max(x.var(axis=0).sum() * len(x) / kept, 1e-300)
        fits.append(linear_model.RidgeCV(_PENALTIES * unit).fit(x, target))
    coefficients = max(fits, key=lambda one: one.best_score_).coef_
    return np.pad(coefficients, (0, most - len(coefficients)))


def choose_method(
    numbers: np.ndarray, target: np.ndarray, check_stop: Callable[[], None] = lambda: None
) -> FitMethod:
    """The method of the highest split-half reliability; the mean difference where there are too few
    members.
    """
    found = {
        method: split_half(numbers, target, method, check_stop, permutations=0)[0]
        for method in _COMPARED
    }
    return max(found, key=lambda method: -1.0 if math.isnan(found[method]) else found[method])


def split_half(
    numbers: np.ndarray,
    target: np.ndarray,
    method: str,
    check_stop: Callable[[], None] = lambda: None,
    permutations: int = _PERMUTATIONS,
    own: np.ndarray | None = None,
) -> tuple[float, float]:
    """Mean cosine of directions fitted to random halves of the members, and the floor of permuted
    labels.

    Each half has its part of both classes and is centered by itself: the means of two halves are
    opposite, which would count against their agreement. CONDITIONAL_DIFFERENCE counts coefficients
    in their standard deviations: learned ones vary most along few axes, on which halves of permuted
    labels agree by chance. Of more than 4,000 members 4,000 are taken. NaN where a class has fewer
    than four members; the floor also without permutations. ``own``: what is fitted in place of the
    labels (n,).
    """
    generator = np.random.default_rng(0)
    own = target if own is None else own
    if len(target) > _HALVED_MEMBERS:
        rows = generator.permutation(len(target))[:_HALVED_MEMBERS]
        numbers = numbers[rows]
        target = target[rows]
        own = own[rows]
    if method == FitMethod.CONDITIONAL_DIFFERENCE:
        numbers = numbers / numbers.std(axis=0).clip(1e-300)
    classes = _binarize(target)
    if min(classes.sum(), (~classes).sum()) < 4:
        return math.nan, math.nan

    def cosine(order: np.ndarray) -> float:
        check_stop()
        labels = target[order]
        fitted = own[order]
        half = _folds(_binarize(labels), 2, generator) == 0
        first, second = (
            fit_normal(
                numbers[rows] - numbers[rows].mean(axis=0),
                fitted[rows] - fitted[rows].mean(),
                method,
            )
            for rows in (half, ~half)
        )
        return float(first @ second / max(np.linalg.norm(first) * np.linalg.norm(second), 1e-300))

    found = [cosine(np.arange(len(target))) for _ in range(_HALVINGS)]
    if not permutations:
        return float(np.mean(found)), math.nan
    chance = [cosine(generator.permutation(len(target))) for _ in range(permutations)]
    return float(np.mean(found)), float(np.mean(chance) + _DEVIATIONS * np.std(chance, ddof=1))


def _folds(classes: np.ndarray, count: int, generator: np.random.Generator) -> np.ndarray:
    """The fold (n,) of each member, each fold with its part of both classes."""
    fold_of = np.empty(len(classes), int)
    for rows in (np.flatnonzero(classes), np.flatnonzero(~classes)):
        fold_of[generator.permutation(rows)] = np.arange(len(rows)) % count
    return fold_of


def _cross_validate(
    numbers: np.ndarray,
    target: np.ndarray,
    method: str,
    check_stop: Callable[[], None],
    own: np.ndarray,
) -> tuple[float, float]:
    """Accuracy over folds on held-out members, and that of always predicting the more frequent
    value.

    NaN where a class has fewer than two members.
    """
    classes = _binarize(target)
    folds = min(_FOLDS, int(classes.sum()), int((~classes).sum()))
    if folds < 2:
        return math.nan, math.nan
    fold_of = _folds(classes, folds, np.random.default_rng(0))
    hits = np.empty(len(classes), bool)
    for fold in range(folds):
        check_stop()
        test = fold_of == fold
        predicted = _predict(
            numbers[~test], target[~test], own=own[~test], new=numbers[test], method=method
        )
        hits[test] = predicted == classes[test]
    return float(hits.mean()), float(max(classes.mean(), 1 - classes.mean()))


def _predict(
    numbers: np.ndarray, target: np.ndarray, own: np.ndarray, new: np.ndarray, method: str
) -> np.ndarray:
    """Classes of new members. What has no threshold of its own gets the best one on the fitted
    members.
    """
    if method in _CLASSIFIERS:
        return _CLASSIFIERS[method]().fit(numbers, _binarize(target)).predict(new)
    normal = fit_normal(numbers, own, method)
    fitted = numbers @ normal
    classes = _binarize(target)
    return new @ normal > best_cut(fitted, classes)


def best_cut(fitted: np.ndarray, classes: np.ndarray) -> float:
    """The threshold above which most of ``classes`` (n,) bool are right, the first of equals; of a
    sort, n log n.
    """
    order = np.argsort(fitted, kind="stable")
    sorted_ = fitted[order]
    cuts = np.concatenate([[-np.inf], (sorted_[1:] + sorted_[:-1]) / 2, [np.inf]])
    below = np.searchsorted(sorted_, cuts, side="right")  # how many are not above each cut
    with_it = np.concatenate([[0], np.cumsum(classes[order])])
    correct = (below - with_it[below]) + (with_it[-1] - with_it[below])
    return cuts[int(np.argmax(correct))]


def _binarize(target: np.ndarray) -> np.ndarray:
    """With or without the attribute: above the middle of the values' range."""
    return target > (target.min() + target.max()) / 2


def _scikit_learn(method: str) -> ModuleType:
    try:
        import sklearn.linear_model
        import sklearn.svm
    except ImportError as error:
        from ..common.packages import missing_package

        missing = missing_package(f"The method {method}", "sklearn", error, "scikit-learn")
        raise RuntimeError(f"{missing}, or use the method least_squares.") from error
    return sklearn


def _hyperplane(method: FitMethod, numbers: np.ndarray, target: np.ndarray) -> np.ndarray:
    return _CLASSIFIERS[method]().fit(numbers, _binarize(target)).coef_[0]


#: With a threshold of their own.
_CLASSIFIERS: dict[str, Callable[[], Any]] = {
    FitMethod.SVM: lambda: _scikit_learn(FitMethod.SVM).svm.LinearSVC(
        C=0.01, max_iter=20_000, random_state=0
    ),
    FitMethod.LOGISTIC_REGRESSION: lambda: _scikit_learn(
        FitMethod.LOGISTIC_REGRESSION
    ).linear_model.LogisticRegression(C=0.01, max_iter=2_000),
}
#: (numbers (n, k), labels (n,)) -> vector (k,): a row a method, beside MOST_RELIABLE, which chooses
#: among them.
FITTERS: dict[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    FitMethod.LEAST_SQUARES: lambda numbers, target: np.linalg.lstsq(numbers, target, rcond=None)[
        0
    ],
    FitMethod.MEAN_DIFFERENCE: fit_mean_difference,
    FitMethod.CONDITIONAL_DIFFERENCE: fit_conditional_difference,
    FitMethod.RIDGE: fit_ridge,
    FitMethod.SVM: functools.partial(_hyperplane, FitMethod.SVM),
    FitMethod.LOGISTIC_REGRESSION: functools.partial(_hyperplane, FitMethod.LOGISTIC_REGRESSION),
}
