"""Identity guidance: a point and an edit on the positive side of CFG only.

With a LoRA on both sides, CFG amplifies the prompt by its scale w and the identity by 1. Here the
negative side keeps the base model, and the positive side is

    e_base + s_identity (e_point - e_base) + s_edit (e_edited - e_point),

so that CFG amplifies the identity by w s_identity and the edit by w s_edit. Both strengths at 0 are
the base model's CFG; both at 1 evaluate the edited point against the base model, at the cost of
plain CFG. CFG amplifies an identity in the late steps too, where colors saturate; it may end before
(a limited interval, arXiv 2404.07724). After the end both sides have the point, and CFG amplifies
the prompt alone: without a negative side eyes and mouths ignore it.
"""

from __future__ import annotations

from .points import check_same_space
from .space import Point


def guidance_terms(
    point: Point, edited: Point | None, identity: float, edit: float
) -> tuple[float, list[tuple[float, Point]]]:
    """Weights of the predictions that the positive side adds up: of the base model, and of each
    point.

    They add up to 1; without an edited point only the identity strength counts. Points of weight 0
    are left out. Raises ValueError for points of different spaces.
    """
    if edited is not None:
        check_same_space(point, edited)
    terms = [(identity, point)] if edited is None else [(identity - edit, point), (edit, edited)]
    return 1.0 - identity, [(weight, one) for weight, one in terms if weight]


def describe(base: float, terms: list[tuple[float, Point]], end_percent: float) -> str:
    """The predictions of the positive side with their weights, and the model evaluations of a
    step.
    """
    parts = [("base model", base)] if base or not terms else []
    parts += [(point.name, weight) for weight, point in terms]
    count = len(parts) + 1
    after = ""
    if end_percent < 1:
        after = f" After {end_percent:.0%} of sampling both sides have it: {2 * len(parts)}."
    return (
        f"Positive side: {', '.join(f'{weight:+g} x {name}' for name, weight in parts)}. Negative "
        f"side: base model. {count} model evaluations per step and image (plain CFG: 2); one fewer "
        "at cfg 1, where the negative side is skipped." + after
    )
