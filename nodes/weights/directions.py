"""Directions of attributes, and steps along them (arXiv 2406.09413, section 3.3 and appendix F).

The paper's fit is least squares of the labels on the first coefficients, without an intercept. The paper's strength is
the largest projection of a training member onto the unit direction: that is a strength of 1 here.
"""

from __future__ import annotations

import difflib

import numpy as np
import torch

from .space import Direction, Space

LEAST_SQUARES, SVM, LOGISTIC = METHODS = ("least squares (paper)", "linear SVM", "logistic regression")
JOINT, IN_TURN = DEBIASING = ("jointly", "one after another (official code)")
_FOLDS = 5
_PC = "PC "


def fit(space: Space, labels: dict[str, torch.Tensor], components: int, method: str) -> dict[str, Direction]:
    """A direction for every attribute: ``labels`` float (n,) each, NaN where unknown; further coefficients are 0.

    Raises ValueError for an attribute that has one value only.
    """
    components = min(components, space.known)
    directions = {}
    for name, values in labels.items():
        known = torch.isfinite(values)
        numbers = space.coefficients[known, :components].double().numpy()
        wanted = values[known].double().numpy()
        if len(np.unique(wanted)) < 2:
            raise ValueError(f"'{name}' has one value for all members: a direction needs members with and without it.")
        vector = torch.from_numpy(_normal(numbers, wanted, method)).float()
        vector = torch.nn.functional.pad(vector, (0, space.components - components))
        directions[name] = Direction(vector, reach(space, vector), _how_well(numbers, wanted, method, components))
    return directions


def varying(labels: dict[str, torch.Tensor]) -> tuple[dict[str, torch.Tensor], list[str]]:
    """The attributes that have more than one value, and a remark on each that has not.

    Raises ValueError when none is left.
    """
    kept = {name: values for name, values in labels.items() if len(values[torch.isfinite(values)].unique()) > 1}
    if not kept:
        raise ValueError("Every attribute has one value for all members: a direction needs members with and without.")
    return kept, [f"No direction for {name}: it has one value for all members." for name in labels if name not in kept]


def reach(space: Space, vector: torch.Tensor) -> float:
    """The largest projection of a training member onto the unit direction."""
    return float((space.coefficients @ (vector / vector.norm().clamp_min(1e-30))[: space.known]).max())


def along(space: Space, name: str, keep: list[str], raw: bool, debiasing: str = JOINT) -> torch.Tensor:
    """The change of coefficients (k,) for a strength of 1 along a direction.

    A name such as "PC 3" is a component, and the strength counts its standard deviations over the members. Else a
    strength of 1 is the largest projection of a training member, or with ``raw`` the vector as it was fitted or
    released. ``keep`` names directions that the change is made orthogonal to, itself excepted.
    """
    axis = _component(space, name)
    vector = find(space, name).vector if axis is None else axis
    others = [find(space, other).vector for other in keep if other != name]
    whole, vector = vector, debiased(vector, others, debiasing)
    if raw or axis is not None:
        return vector
    norm = vector.norm()
    if norm < 1e-6 * whole.norm():
        raise ValueError(f"Nothing is left of '{name}' without {', '.join(keep)}: keep fewer attributes.")
    return vector / norm * reach(space, vector)


def _component(space: Space, name: str) -> torch.Tensor | None:
    """One standard deviation along the component of a name such as "PC 3"; None for other names."""
    if name in space.directions or not name.upper().startswith(_PC):
        return None
    number = name[len(_PC) :].strip()
    if not number.isdigit() or not 1 <= int(number) <= space.known:
        raise ValueError(f"There is no component '{name}': write PC 1 to PC {space.known}.")
    step = torch.zeros(space.components)
    step[int(number) - 1] = space.spread[1][int(number) - 1]
    return step


def debiased(vector: torch.Tensor, others: list[torch.Tensor], how: str = JOINT) -> torch.Tensor:
    """A direction without what it has in common with others.

    Jointly: orthogonal to all of them. In turn: n <- n - (n.d / |d|^2) d for one after another, as the official code
    does, which leaves only the last exactly orthogonal.
    """
    if not others:
        return vector
    if how == IN_TURN:
        for other in others:
            vector = vector - (vector @ other) / (other @ other) * other
        return vector
    basis, _ = torch.linalg.qr(torch.stack(others).double().T)
    exact = vector.double()
    return (exact - basis @ (basis.T @ exact)).float()


def find(space: Space, name: str) -> Direction:
    """A direction by name; raises ValueError with the nearest names when there is none."""
    if name in space.directions:
        return space.directions[name]
    if not space.directions:
        raise ValueError(f"The space {space.name} has no directions yet: put W2W Fit Directions after its loader, "
                         "or name a component, such as PC 1.")  # fmt: skip
    near = difflib.get_close_matches(name, space.directions, n=5, cutoff=0.0)
    raise ValueError(f"The space {space.name} has no direction '{name}': there is {', '.join(near)}.")


def describe(directions: dict[str, Direction]) -> str:
    """A line for each direction: its reach, its norm and how well it was fitted; then the pairs most alike."""
    lines = [
        f"{name}: reach {one.reach:.2f}, norm {float(one.vector.norm()):.3g}; {one.about}"
        for name, one in directions.items()
    ]
    units = torch.stack([one.vector / one.vector.norm() for one in directions.values()])
    cosines = (units @ units.T).triu(diagonal=1)
    names = list(directions)
    pairs = sorted(((abs(float(cosines[i, j])), i, j) for i in range(len(names)) for j in range(i)), reverse=True)
    pairs = sorted(((float(cosines[j, i]), j, i) for _, i, j in pairs), key=lambda one: -abs(one[0]))[:5]
    alike = [f"{names[i]} and {names[j]}: cosine {value:+.2f}" for value, i, j in pairs]
    return "\n".join([*lines, *(["Most alike:", *alike] if alike else [])])


def _normal(numbers: np.ndarray, wanted: np.ndarray, method: str) -> np.ndarray:
    if method == LEAST_SQUARES:
        return np.linalg.lstsq(numbers, wanted, rcond=None)[0]
    model = _classifier(method)
    model.fit(numbers, _classes(wanted))
    return model.coef_[0]


def _how_well(numbers: np.ndarray, wanted: np.ndarray, method: str, components: int) -> str:
    """Accuracy over folds on members that were not fitted, beside that of always saying the more frequent value."""
    told = f"{method}, {len(wanted)} members, {components} components"
    classes = _classes(wanted)
    rarest = min(int(classes.sum()), int(len(classes) - classes.sum()))
    folds = min(_FOLDS, rarest)
    if folds < 2:
        return f"{told}; too few members with and without it for cross-validation"
    from sklearn.model_selection import StratifiedKFold

    hits = []
    for train, test in StratifiedKFold(folds, shuffle=True, random_state=0).split(numbers, classes):
        hits.append(_predict(numbers[train], wanted[train], numbers[test], method) == classes[test])
    hits = np.concatenate(hits)
    baseline = max(classes.mean(), 1 - classes.mean())
    return f"{told}; cross-validated accuracy {hits.mean():.3f} (always the more frequent value: {baseline:.3f})"


def _predict(numbers: np.ndarray, wanted: np.ndarray, new: np.ndarray, method: str) -> np.ndarray:
    """Classes of new members. Least squares has no threshold of its own: it gets the one best on what it was fitted."""
    if method != LEAST_SQUARES:
        return _classifier(method).fit(numbers, _classes(wanted)).predict(new)
    normal = _normal(numbers, wanted, method)
    fitted, classes = numbers @ normal, _classes(wanted)
    order = np.sort(fitted)
    cuts = np.concatenate([[-np.inf], (order[1:] + order[:-1]) / 2, [np.inf]])
    right = [((fitted > cut) == classes).mean() for cut in cuts]
    return new @ normal > cuts[int(np.argmax(right))]


def _classes(wanted: np.ndarray) -> np.ndarray:
    """With or without the attribute: above the middle of the values' range."""
    return wanted > (wanted.min() + wanted.max()) / 2


def _classifier(method: str):
    try:
        from sklearn.linear_model import LogisticRegression
        from sklearn.svm import LinearSVC
    except ImportError as error:
        raise RuntimeError("This fit needs scikit-learn: pip install scikit-learn") from error
    if method == SVM:
        return LinearSVC(C=0.01, max_iter=20_000, random_state=0)
    return LogisticRegression(C=0.01, max_iter=2_000)
