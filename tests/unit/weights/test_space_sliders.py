"""Sliders inside a learned space against dense weights of its points, equation 7 at several points,
and what a direction says of itself.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from glassbox.nodes.weights import directions
from glassbox.nodes.weights.flat_layout import Layout
from glassbox.nodes.weights.learned_space import LearnedUpdates
from glassbox.nodes.weights.slider_phrases import SliderPhrases
from glassbox.nodes.weights.slider_training import (
    Concept,
    PhraseData,
    SliderSettings,
    SliderTraining,
)
from glassbox.nodes.weights.space_sliders import SpaceSliders, direction_names, training_points

RANK, MEMBERS = 3, 6
SIZES = {"mid_block.attn1.to_q": (6, 7), "mid_block.attn2.to_v": (9, 6)}  # inputs, outputs
LAYOUT = Layout.of({name: ((RANK, i), (o, RANK)) for name, (i, o) in SIZES.items()}, RANK, 1.5)
ETA = 1.5


def learned_space(seed=3):
    updates = LearnedUpdates(LAYOUT, MEMBERS, 4, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        updates.directions.copy_(torch.randn(updates.directions.shape, generator=generator))
    return updates.space(tuple(f"member {row}" for row in range(MEMBERS)), "people", "tiny")


def moved(sliders, seed=5):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        sliders.flat.copy_(torch.randn(sliders.flat.shape, generator=generator))
    return sliders


def dense(space, coefficients):
    """Each layer's dW = alpha / rank * up @ down of a point, in float64."""
    flat = space.mean.double() + coefficients.double() @ (
        space.rows(0, space.components).double() * space.deviation.double()
    )
    changes = {}
    for slot in LAYOUT.slots:
        down = flat[slot.offset : slot.up_offset].view(slot.down_shape)
        up = flat[slot.up_offset : slot.end].view(slot.up_shape)
        changes[slot.layer] = 0.5 * up @ down
    return changes


def inputs_of(slot, rows):
    generator = torch.Generator().manual_seed(8)
    return torch.randn(rows, 5, slot.down_shape[1], generator=generator)


def test_a_row_is_the_point_of_its_image_moved_by_its_slider():
    """Against dense weights in float64, to 1e-4 of sums of some twenty float32 terms; the same rows
    twice, as both sides of CFG, are the same changes twice.
    """
    space = learned_space()
    points = training_points(space, 2, 3)
    sliders = moved(SpaceSliders(space, points, 2))
    rows = [(1, 0.7, 2), (0, -1.0, 0), (1, 0.0, 1)]
    sliders.select(*(list(column) for column in zip(*rows, strict=True)))
    spread = space.coefficients.std(dim=0)
    for slot in LAYOUT.slots:
        x = inputs_of(slot, 3)
        changes = sliders.change(slot, x)
        for row, (slider, strength, image) in enumerate(rows):
            coefficients = points[image] + strength * spread * sliders.flat[slider].detach()
            expected = x[row].double() @ dense(space, coefficients)[slot.layer].T
            assert torch.allclose(changes[row].double(), expected, rtol=1e-4, atol=1e-4)
        twice = sliders.change(slot, torch.cat([x, x]))
        assert torch.allclose(twice[3:], changes, atol=1e-5)


def test_off_is_the_point_and_a_fresh_slider_changes_nothing():
    space = learned_space()
    points = training_points(space, 2, 4)
    sliders = SpaceSliders(space, points, 1)
    slot = LAYOUT.slots[1]
    x = inputs_of(slot, 2)
    sliders.off([3, 1])
    plain = sliders.change(slot, x)
    for row, image in enumerate((3, 1)):
        expected = x[row].double() @ dense(space, points[image])[slot.layer].T
        assert torch.allclose(plain[row].double(), expected, rtol=1e-4, atol=1e-4)
    sliders.select([0, 0], [1.0, -1.0], [3, 1])
    assert torch.equal(sliders.change(slot, x), plain)
    moved(sliders)
    sliders.select([0, 0], [0.0, 0.0], [3, 1])
    assert torch.equal(sliders.change(slot, x), plain)


def test_the_lora_of_a_slider_adds_to_any_point_what_the_slider_adds():
    space = learned_space()
    points = training_points(space, 2, 2)
    sliders = moved(SpaceSliders(space, points, 2))
    for slider in range(2):
        vector = sliders.vector(slider)
        for layer, factors in sliders.layers(slider).items():
            up, down = factors.matrices()
            for point in points:
                expected = dense(space, point + vector)[layer] - dense(space, point)[layer]
                assert torch.allclose((up @ down).double(), expected, rtol=1e-4, atol=1e-5)


def test_points_are_members_and_points_near_them_by_the_seed():
    space = learned_space()
    points = training_points(space, 4, 5)
    assert points.shape == (5, space.components)
    known = [any(torch.equal(row, member) for member in space.coefficients) for row in points]
    assert known == [True, True, True, False, False]
    assert torch.equal(points, training_points(space, 4, 5))
    assert not torch.equal(points, training_points(space, 5, 5))
    more = training_points(space, 1, 30)  # than members: the rest lies near them
    assert more.shape == (30, space.components)


def test_a_collected_space_is_refused():
    space = learned_space()
    collected = replace(space, about={"name": "collected people"})
    with pytest.raises(ValueError, match="collected people was collected from LoRAs"):
        SpaceSliders(collected, training_points(space, 1, 2), 1)


def test_a_direction_is_the_trained_vector_with_its_length_in_words():
    space = learned_space()
    sliders = moved(SpaceSliders(space, training_points(space, 1, 2), 1))
    direction = sliders.direction(0, left=0.25)
    vector = sliders.vector(0)
    assert torch.equal(direction.vector, vector) and not direction.noise
    largest = directions.max_projection(space, vector)
    assert direction.max_projection == pytest.approx(largest)
    assert f"a strength of {float(vector.norm()) / largest:.2f}, 25 % of the" in direction.about
    step = directions.direction_step(space.with_directions({"old": direction}), "old", [], raw=True)
    assert torch.equal(step, vector)
    assert sliders.direction(0, left=0.98).noise
    untrained = SpaceSliders(space, training_points(space, 1, 2), 1).direction(0, left=1.0)
    assert untrained.noise


@pytest.mark.parametrize(
    "increase, decrease, name",
    [
        ("old, wrinkled", "young", "old wrinkled"),
        ("", "beard: long", "beard long"),
        ("round  glasses; thin", "", "round glasses thin"),
    ],
)
def test_names_of_directions_can_be_written_into_edits(increase, decrease, name):
    assert direction_names([SliderPhrases(increase=increase, decrease=decrease)]) == [name]


def test_sliders_that_begin_with_the_same_phrase_have_names_of_their_own():
    pairs = [("beard", "shaven"), ("beard", "moustache"), ("old", ""), ("beard", "")]
    sliders = [SliderPhrases(increase=plus, decrease=minus) for plus, minus in pairs]
    assert direction_names(sliders) == ["beard", "beard (2)", "old", "beard (3)"]


class Session:
    """A network of one layer on latents (6, 4) that predicts the noise; the layer changes with the
    sliders.
    """

    device = torch.device("cpu")
    sampling = SimpleNamespace()

    def __init__(self, sliders):
        generator = torch.Generator().manual_seed(9)
        self.sliders = sliders
        self.weight = torch.randn(7, 6, generator=generator) / 6
        self.back = torch.randn(6, 7, generator=generator) / 7
        self.latents = [torch.randn(1, 6, 4, generator=generator) for _ in range(4)]
        self.contexts = torch.randn(5, 6, generator=generator)

    def sigma(self, percent):
        return 0.2 + 5 * percent

    def noised(self, latent, noise, sigmas):
        return latent + sigmas[:, None, None] * noise

    def rows_at_once(self, count, shape, *, gradients=True):
        return min(count, 5)

    def predicted(self, x, conditions, change):
        tokens = (x + self.contexts.to(x)[conditions][:, :, None]).mT
        hidden = tokens @ self.weight.to(x).T + change(tokens)
        return (hidden.tanh() @ self.back.to(x).T).mT

    def denoised(self, noised, sigmas, rows, images=None):
        change = self.sliders.change
        slot = LAYOUT.slots[0]
        noise = self.predicted(noised, list(rows), lambda tokens: change(slot, tokens))
        return noised - sigmas[:, None, None] * noise


def test_loss_is_equation_7_at_the_point_of_each_image():
    """Of a direct computation in float64 with dense weights, to 2e-4; then training lowers what is
    left of the error.
    """
    space = learned_space()
    points = training_points(space, 2, 4)
    sliders = moved(SpaceSliders(space, points, 2))
    concepts = [
        Concept(increase=[[2], [3]], decrease=[[4], [0]]),
        Concept(increase=[[1], [4]], decrease=[[0], [1]]),
    ]
    data = PhraseData(scenes=[0, 1, 0, 1], neutral=[0, 1], concepts=concepts, kinds=["same"] * 5)
    settings = SliderSettings(
        steps=60, learning_rate=0.05, batch_size=3, guidance_scale=ETA, seed=4
    )
    session = Session(sliders)
    training = SliderTraining(sliders, data, settings)
    draw = training.draw(0)
    noise = draw.noise((6, 4)).double()
    spread = space.coefficients.std(dim=0)
    losses = []
    for number, concept in enumerate(concepts):
        for row, image in enumerate(draw.images):
            sigma = session.sigma(draw.percents[row])
            x = session.latents[image].double() + sigma * noise[row]

            def answer(condition, coefficients, x=x):
                weight = dense(space, coefficients)[LAYOUT.slots[0].layer]
                return session.predicted(x, [condition], lambda tokens: tokens @ weight.T)

            scene = image % 2
            plain = answer(scene, points[image])
            plus = answer(concept.increase[scene][0], points[image])
            minus = answer(concept.decrease[scene][0], points[image])
            for strength in (1.0, -1.0):
                edited = points[image] + strength * spread * sliders.flat[number].detach()
                error = answer(scene, edited) - plain - strength * ETA * (plus - minus)
                losses.append(error.square().mean())
    assert training.step_backward(session, 0) == pytest.approx(
        float(torch.stack(losses).mean()), rel=2e-4
    )
    with torch.no_grad():
        sliders.flat.zero_()
    trained = SliderTraining(sliders, data, settings)
    trained.run(session, lambda done: None)
    assert all(0 < left < 0.97 for left in trained.error_left(session)), trained.error_left(session)
