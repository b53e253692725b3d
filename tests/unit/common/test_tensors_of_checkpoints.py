"""Tensors of checkpoints against what a training leaves: each place that is checked, alone."""

import pytest
import torch
from glassbox.nodes.common import resume

SHAPES = {"a": (2, 3), "b": ()}


def tensors(**changed):
    return {"a": torch.ones(2, 3), "b": torch.tensor(4.0), "more": torch.ones(5)} | changed


def test_tensors_of_the_shapes_are_taken():
    resume.check_tensors("run", tensors(), SHAPES)


@pytest.mark.parametrize(
    "changed",
    [
        {"a": torch.ones(3, 2)},
        {"a": torch.ones(6)},
        {"b": torch.ones(1)},
        {"a": torch.tensor([[1.0, 2.0, torch.nan]] * 2)},
        {"b": torch.tensor(torch.inf)},
    ],
)
def test_another_shape_or_number_is_damage(changed):
    with pytest.raises(ValueError, match="run is damaged: delete it, or choose another name"):
        resume.check_tensors("run", tensors(**changed), SHAPES)


@pytest.mark.parametrize("name", SHAPES)
def test_a_tensor_that_is_not_there_is_damage(name):
    kept = {key: value for key, value in tensors().items() if key != name}
    with pytest.raises(ValueError, match="run is damaged"):
        resume.check_tensors("run", kept, SHAPES)


def test_a_file_may_hold_as_many_steps_as_the_run_and_no_more():
    resume.check_length("run", 5, 5)
    resume.check_length("run", 0, 5)
    with pytest.raises(ValueError, match="run holds 6 steps and 5 are wanted"):
        resume.check_length("run", 6, 5)


def state(**changed):
    moments = {
        "step": torch.tensor(3.0),
        "exp_avg": torch.full((2,), -1.0),
        "exp_avg_sq": torch.zeros(2),
    }
    return moments | changed


def test_moments_of_adam_that_a_training_leaves():
    resume.check_adam({0: state(), 1: state(step=torch.tensor(0.0))}, [torch.zeros(2)] * 2)


@pytest.mark.parametrize(
    ("states", "reason"),
    [
        ({1: state()}, "not Adam's"),
        ({-1: state()}, "not Adam's"),
        ({0: {"step": torch.tensor(1.0)}}, "not Adam's"),
        ({0: state(exp_avg=torch.zeros(3))}, "another shape or type"),
        ({0: state(step=torch.zeros(1))}, "another shape or type"),
        ({0: state(exp_avg=torch.zeros(2, dtype=torch.int64))}, "another shape or type"),
        ({0: state(exp_avg=torch.tensor([0.0, torch.nan]))}, "not finite"),
        ({0: state(step=torch.tensor(torch.inf))}, "not finite"),
        ({0: state(exp_avg_sq=torch.tensor([0.0, -1e-9]))}, "is negative"),
        ({0: state(step=torch.tensor(-1.0))}, "is negative"),
    ],
)
def test_moments_that_no_training_leaves(states, reason):
    with pytest.raises(ValueError, match=reason):
        resume.check_adam(states, [torch.zeros(2)])
