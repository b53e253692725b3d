"""Operations that take a second mask, through the table by which the node finds them."""

import pytest
from glassbox.nodes.neurons import mask_operations
from glassbox.nodes.neurons.mask import NeuronMask
from glassbox.nodes.neurons.mask_operations import OF_TWO, OPERATIONS, MaskEdit, MaskOperation

ONE = NeuronMask({"a": {1: 0.0, 2: 0.5}, "b": {0: 0.0}})
OTHER = NeuronMask({"a": {2: 0.0, 3: 0.0}, "c": {7: 0.0}})
BY_HAND = {
    MaskOperation.UNION: mask_operations.union,
    MaskOperation.INTERSECTION: mask_operations.intersection,
    MaskOperation.SUBTRACT: mask_operations.subtract,
}


def edit(**given):
    fields = {"mask": ONE, "other": None, "count": 0, "widths": {}, "seed": 0, "neurons": ""}
    return MaskEdit(**(fields | given))


@pytest.mark.parametrize("operation", OF_TWO)
def test_each_is_its_own_function_of_both(operation):
    """``_of_two`` hands both masks over, in their order."""
    found = OPERATIONS[operation](edit(other=OTHER))
    assert found.scales == BY_HAND[operation](ONE, OTHER).scales
    neurons = {(path, number) for path, layer in found.scales.items() for number in layer}
    first = {("a", 1), ("a", 2), ("b", 0)}
    second = {("a", 2), ("a", 3), ("c", 7)}
    expected = {
        MaskOperation.UNION: first | second,
        MaskOperation.INTERSECTION: first & second,
        MaskOperation.SUBTRACT: first - second,
    }
    assert neurons == expected[operation]


@pytest.mark.parametrize("operation", OF_TWO)
def test_without_a_second_mask_they_are_refused(operation):
    with pytest.raises(ValueError, match=f"{operation} needs a second mask: connect it to"):
        OPERATIONS[operation](edit())
