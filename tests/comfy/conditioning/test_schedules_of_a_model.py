"""The size schedules that a MODEL carries, for whoever reports on it."""

import pytest
import torch
from model_changers import CHANGERS
from tapping import World


@pytest.fixture(scope="module")
def demo(app):
    return World(app, *app.run("GBX_LoadDemoModel", weights="avatars-v2"))


def test_schedules_of_a_model_are_those_that_were_put_on_it(app, demo):
    schedules_of = app.module("nodes.conditioning.metadata_schedule_comfy").schedules_of
    assert schedules_of(demo.model) == ()
    one = CHANGERS["schedule of values"][1](demo, demo.model)
    both = CHANGERS["schedule of the embedding"][1](demo, one)
    found = schedules_of(both)
    assert len(schedules_of(one)) == 1 and len(found) == 2
    assert schedules_of(one)[0] in found
    assert schedules_of(demo.model) == ()


def test_each_image_of_a_batch_has_the_fraction_of_its_own_noise(app, demo):
    """As trainings mix noise levels; a batch of one level has one."""
    fractions = app.module("nodes.conditioning.metadata_schedule_comfy")._noise_fractions
    model = demo.model.model
    levels = [model.model_sampling.percent_to_sigma(part) for part in (0.2, 0.5, 0.9)]
    mixed = fractions(model, torch.tensor([*levels, levels[0]]))
    assert mixed == [*(fractions(model, torch.tensor([one]))[0] for one in levels), mixed[0]]
    assert mixed[0] > mixed[1] > mixed[2]
    assert fractions(model, torch.tensor(levels[:1] * 3)) == mixed[:1]
