"""A learned space against dense updates of each member, and its SVD against that of the members'
updates.
"""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from glassbox.nodes.weights import lora_writer, points, space_file
from glassbox.nodes.weights.flat_layout import Layout
from glassbox.nodes.weights.learned_space import LearnedUpdates
from glassbox.nodes.weights.space_training import MemberImages, SpaceTraining, SpaceTrainingSettings

RANK, MEMBERS, COMPONENTS = 3, 5, 4
SIZES = {"mid_block.attn1.to_q": (6, 7), "mid_block.attn2.to_v": (9, 6)}  # inputs, outputs
LAYOUT = Layout.of({name: ((RANK, i), (o, RANK)) for name, (i, o) in SIZES.items()}, RANK, 1.5)
NAMES = tuple(f"member {number}" for number in range(MEMBERS))


def made(members=MEMBERS, components=COMPONENTS, seed=3):
    updates = LearnedUpdates(LAYOUT, members, components, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        updates.directions.copy_(torch.randn(updates.directions.shape, generator=generator))
    return updates


def dense(updates, code):
    """Each layer's dW = scale * (sum_k c_k U_k) R from the parameters, in float64."""
    found, first_up, first_down = {}, 0, 0
    for slot in LAYOUT.slots:
        outputs, inputs = slot.up_shape[0], slot.down_shape[1]
        parts = (
            updates.directions[:, first_up : first_up + outputs * RANK]
            .double()
            .view(-1, outputs, RANK)
        )
        projection = (
            updates.projections[first_down : first_down + RANK * inputs].double().view(RANK, inputs)
        )
        found[slot.layer] = 0.5 * torch.einsum("k,kor->or", code.double(), parts) @ projection
        first_up, first_down = first_up + outputs * RANK, first_down + RANK * inputs
    return found


class Session:
    """Two linear layers that answer with the noise in tokens (1, 9, 4); 4 tokens of 6 and of 9
    numbers.
    """

    device = "cpu"

    def __init__(self, changed, shapes=((6, 4),) * 20, most=20):
        self.most = most
        generator = torch.Generator().manual_seed(9)
        self.sampling, self.changed = None, changed
        self.weights = [torch.randn(o, i, generator=generator) / i for i, o in SIZES.values()]
        self.mixing = torch.randn(7, 9, generator=generator)
        self.latents = [torch.randn(1, *shape, generator=generator) for shape in shapes]
        self.contexts = torch.randn(len(shapes) + 1, 6, generator=generator)
        self.calls = []

    def sigma(self, percent):
        return 0.2 + 5 * (1 - percent)

    def noised(self, latent, noise, sigmas):
        return latent + sigmas[:, None, None] * noise

    def clean(self, latent):
        return latent

    def rows_at_once(self, count, shape, *, gradients=True):
        assert shape == self.latents[0].shape[1:]
        return min(count, self.most)

    def denoised(self, noised, sigmas, rows, images=None):
        self.calls.append((noised.detach().clone(), sigmas.clone(), list(rows)))
        x = (noised + self.contexts[rows][:, :, None]).mT
        hidden = self.changed(0, x, self.weights[0])
        answer = self.changed(1, hidden.relu() @ self.mixing.to(x), self.weights[1]).mT
        return noised - sigmas[:, None, None] * answer


def grouped(updates):
    slots = LAYOUT.slots
    return lambda number, x, weight: (
        torch.nn.functional.linear(x, weight) + updates.change(slots[number], x)
    )


def run_of(updates, images=None, kinds=None, **settings):
    images = images or [range(first, first + 4) for first in range(0, 20, 4)]
    count = 1 + max(max(one) for one in images)
    data = MemberImages(
        images=images, kinds=kinds or [0] * count, conditions=list(range(count)), empty_row=20
    )
    return SpaceTraining(
        updates, data, SpaceTrainingSettings(**{"steps": 3, "members": 4, "images": 2, **settings})
    )


def test_rows_of_different_members_go_through_their_own_updates():
    updates = made()
    members = torch.tensor([4, 0, 4, 2, 0])
    updates.select(members)
    for slot in LAYOUT.slots:
        for shape in (
            (5, slot.down_shape[1]),
            (5, 3, slot.down_shape[1]),
            (5, 2, 3, slot.down_shape[1]),
            (5, 0, slot.down_shape[1]),
        ):
            x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
            wanted = [
                row.double() @ dense(updates, updates.codes[member])[slot.layer].T
                for row, member in zip(x, members, strict=True)
            ]
            torch.testing.assert_close(
                updates.change(slot, x).double(), torch.stack(wanted), rtol=1e-5, atol=1e-5
            )


def test_gradients_are_those_of_training_member_by_member():
    """Directions at random, dropped captions among the rows; each row alone through its member's
    dense weights.
    """
    updates = made()
    session = Session(grouped(updates))
    run = run_of(updates, prior=0.3, caption_dropout=0.5)
    draw = next(
        one for one in map(run.draw, range(20)) if len({row.dropped for row in one.rows}) == 2
    )
    loss = run.backward(session, draw)
    copies = {
        name: value.detach().double().requires_grad_() for name, value in updates.parameters.items()
    }
    alone, total = SimpleNamespace(**copies), 0.0
    noise = draw.noise((6, 4)).double()
    for row in draw.rows:
        changes = list(dense(alone, alone.codes[row.member]).values())
        other = Session(
            lambda number, x, weight, changes=changes: x @ (weight.double() + changes[number]).T
        )
        other.contexts = other.contexts.double()
        sigma = torch.tensor([session.sigma(draw.percents[row.place])]).double()
        noised = session.latents[row.image].double() + sigma * noise[row.place]
        answer = other.denoised(noised, sigma, [20 if row.dropped else row.image])
        total = total + (
            (answer - session.latents[row.image].double()) / sigma
        ).square().mean() / len(draw.rows)
    (total + 0.3 * alone.codes[draw.members].square().mean()).backward()
    assert len(draw.members) == 4 and len(draw.rows) == 8
    assert loss == pytest.approx(float(total.detach()), rel=1e-5)
    for name, value in updates.parameters.items():
        error = (value.grad.double() - copies[name].grad).norm() / copies[name].grad.norm()
        assert error < 1e-5, name


_WAYS = {
    "batches": ({"batch_size": 3}, 20),
    "kinds": ({"kinds": [0, 1] * 10}, 20),
    "what the network takes": ({}, 1),
}


@pytest.mark.parametrize("way", _WAYS)
def test_evaluations_in_parts_give_the_same_gradient(way):
    settings, most = _WAYS[way]
    whole, parts = made(), made()
    run_of(whole).backward(Session(grouped(whole)), run_of(whole).draw(2))
    run = run_of(parts, **settings)
    session = Session(grouped(parts), most=most)
    run.backward(session, run.draw(2))
    assert len(session.calls) > 1
    assert max(len(rows) for *_, rows in session.calls) <= most
    for name, value in whole.parameters.items():
        torch.testing.assert_close(parts.parameters[name].grad, value.grad, rtol=1e-4, atol=1e-6)


def test_the_batch_size_changes_no_loss_and_no_gradient():
    """As its tooltip says: one by one, three by three, and all 96 rows at once."""
    found = {}
    for batch_size in (1, 3, 96):
        updates = made(members=5)
        run = run_of(updates, batch_size=batch_size, caption_dropout=0.2)
        run.settings = replace(run.settings, images=24)
        session = Session(grouped(updates))
        loss = run.backward(session, run.draw(1))
        found[batch_size] = loss, {name: one.grad for name, one in updates.parameters.items()}
        assert len(run.draw(1).rows) == 96
        assert max(len(rows) for *_, rows in session.calls) <= batch_size
    for batch_size in (3, 96):
        assert found[batch_size][0] == pytest.approx(found[1][0], rel=1e-6)
        for name, gradient in found[1][1].items():
            error = (found[batch_size][1][name] - gradient).norm() / gradient.norm()
            assert error < 1e-6, name


def test_the_largest_seed_trains_as_any_other():
    updates = made()
    run = run_of(updates, seed=2**64 - 1)
    draws = [run.draw(step) for step in (0, 1, -1)]
    assert len({draw.seed for draw in draws}) == 3
    assert math.isfinite(run.backward(Session(grouped(updates)), draws[0]))


def test_members_of_a_step_share_noise_levels_noise_and_dropped_captions():
    images = [[0, 1, 2], [3], [4, 5]]
    updates = made(members=3)
    data = MemberImages(images=images, kinds=[0] * 6, conditions=list(range(6)), empty_row=20)
    run = SpaceTraining(
        updates, data, SpaceTrainingSettings(steps=3, members=3, images=3, caption_dropout=0.5)
    )
    for draw in map(run.draw, range(6)):
        assert sorted(row.member for row in draw.rows) == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        assert all(row.image in images[row.member] for row in draw.rows)
        by_member = [[row for row in draw.rows if row.member == member] for member in range(3)]
        assert sorted(row.image for row in by_member[0]) == [0, 1, 2]
        assert {row.image for row in by_member[2]} == {4, 5}
        assert len({tuple((row.place, row.dropped) for row in rows) for rows in by_member}) == 1
        assert all(0 <= percent <= 0.85 for percent in draw.percents)
    assert run.draw(3) == run.draw(3) != run.draw(4)


def test_training_goes_down_and_is_the_same_again():
    losses = []
    for _ in range(2):
        updates = LearnedUpdates(LAYOUT, MEMBERS, COMPONENTS, 0)
        run = run_of(updates, steps=60, learning_rate=0.01)
        run.run(Session(grouped(updates)), lambda done: None)
        losses.append(run.losses)
    assert losses[0] == losses[1]
    assert sum(losses[0][-10:]) < 0.9 * sum(losses[0][:10])


def test_a_loss_that_is_not_finite_ends_with_a_sentence():
    updates = made()
    with torch.no_grad():
        updates.codes[:] = torch.inf
    with pytest.raises(ValueError, match="lower learning rate"):
        run_of(updates).run(Session(grouped(updates)), lambda done: None)


def test_weights_of_positions_make_the_error_their_weighted_mean():
    updates = made()
    session, run = Session(grouped(updates)), run_of(updates)
    draw = run.draw(0)
    mask = torch.zeros(1, 1, 4)
    mask[..., :2] = 0.5
    whole = run._errors(session, draw.rows, draw)
    run.data = MemberImages(
        images=run.data.images,
        kinds=run.data.kinds,
        conditions=run.data.conditions,
        weights=[mask] * 20,
    )
    cut = [one[..., :2] for one in session.latents]
    masked = run._errors(session, draw.rows, draw)
    answer = session.denoised(*session.calls[0][:2], session.calls[0][2])
    wanted = [
        ((answer[at, :, :2] - cut[row.image][0]) / session.calls[0][1][at]).square().mean()
        for at, row in enumerate(draw.rows)
    ]
    torch.testing.assert_close(masked, torch.stack(wanted))
    assert not torch.allclose(whole, masked)


@pytest.mark.parametrize(("members", "components"), [(5, 4), (5, 9), (2, 4), (30, 4)])
def test_the_space_is_the_exact_svd_of_the_members_updates(members, components):
    updates = made(members, components)
    names = tuple(f"member {number}" for number in range(members))
    space = updates.space(names, "learned", "toy")
    flats = torch.stack([updates.flat(code) for code in updates.codes]).double()
    values = torch.linalg.svdvals(flats - flats.mean(dim=0))
    count = min(components, members - 1)
    assert space.components == space.known == count
    torch.testing.assert_close(space.singular_values.double(), values[:count], rtol=1e-5, atol=1e-5)
    basis = space.basis.double()
    torch.testing.assert_close(basis @ basis.T, torch.eye(count).double(), rtol=0, atol=1e-5)
    for row, flat in enumerate(flats):
        torch.testing.assert_close(
            space.rebuild(space.coefficients[row]).double(), flat, rtol=1e-5, atol=1e-5
        )
        torch.testing.assert_close(
            space.project(flat.float()), space.coefficients[row], rtol=1e-4, atol=1e-4
        )


def test_the_midpoint_of_codes_is_the_midpoint_of_updates():
    updates = made()
    first, second = updates.codes.detach()[:2]
    middle = dense(updates, (first + second) / 2)
    space = updates.space(NAMES, "learned", "toy")
    point = points.mix(
        points.member_point(space, NAMES[0]), points.member_point(space, NAMES[1]), 0.5, 0.5, 1
    )[0]
    for layer, factors in point.layers().items():
        wanted = (dense(updates, first)[layer] + dense(updates, second)[layer]) / 2
        torch.testing.assert_close(middle[layer], wanted)
        up, down = factors.matrices(torch.float64)
        torch.testing.assert_close(up @ down, wanted, rtol=1e-5, atol=1e-5)


def test_a_point_is_a_lora_of_exactly_the_rank_and_the_file_is_read_unchanged(tmp_path):
    updates = made()
    space = updates.space(NAMES, "learned", "toy")
    space_file.write(space, tmp_path / "learned.safetensors", "int8")
    again = space_file.read(tmp_path / "learned.safetensors")
    assert again.form == "as_trained" and again.about["learned"] is True
    tensors = lora_writer.to_tensors(points.sample(again, 0, 1, 10, 1.0)[0].layers())
    downs = {name: value for name, value in tensors.items() if name.endswith("lora_down.weight")}
    assert len(downs) == len(SIZES) and {value.shape[0] for value in downs.values()} == {RANK}
    flat = again.rebuild(again.coefficients[1])
    wanted = updates.flat(updates.codes[1])
    assert (flat - wanted).norm() < 0.01 * wanted.norm()


def test_files_of_any_rank_and_factors_are_projected_onto_the_shared_ones():
    """A point's export of each layer's own rank comes back; of another LoRA the update nearest to
    its own is taken.
    """
    from glassbox.nodes.common.lora_reader import Factors, Lora
    from glassbox.nodes.weights import projection

    updates = made()
    space = updates.space(tuple(map(str, range(MEMBERS))), "toy", "toy")
    point = projection.Point(
        space, 0.4 * space.coefficients[0] - 0.3 * space.coefficients[1], "point"
    )
    layers = {}
    for name, factors in point.layers().items():
        up, down = factors.matrices(torch.float64)
        left, values, right = torch.linalg.svd(up @ down, full_matrices=False)
        kept = int((values > 1e-6 * values[0]).sum())
        layers[name] = Factors(
            right[:kept].view(kept, *factors.down.shape[1:]),
            left[:, :kept] * values[:kept] / 3,
            3.0,
        )
    found, report = projection.project(space, Lora(layers), 100, "export")
    torch.testing.assert_close(found.coefficients, point.coefficients, rtol=1e-4, atol=1e-4)
    assert "explains 100.0 %" in report
    generator, strange = torch.Generator().manual_seed(5), {}
    for name, factors in layers.items():
        sides = (
            torch.randn(6, factors.down.flatten(1).shape[1], generator=generator),
            len(factors.up),
        )
        strange[name] = Factors(sides[0], torch.randn(sides[1], 6, generator=generator), 0.5)
    found, _ = projection.project(space, Lora(strange), 100, "strange")
    shared, wanted = space.layout.unflatten(space.mean), dict[str, Factors]()
    for name, factors in strange.items():
        up, down = factors.matrices(torch.float64)
        nearest = torch.linalg.lstsq(
            shared[name].down.double().flatten(1).T, (up @ down).T
        ).solution.T
        wanted[name] = Factors(
            shared[name].down, nearest.float() / shared[name].scale, shared[name].scale
        )
    torch.testing.assert_close(
        found.coefficients, space.project(space.layout.flatten(wanted)), rtol=1e-4, atol=1e-4
    )


def test_a_member_more_costs_its_code_and_nothing_else():
    def kept(members):
        updates = made(members)
        data = MemberImages(images=[[0]] * members, kinds=[0], conditions=[0])
        run = SpaceTraining(updates, data, SpaceTrainingSettings(steps=1, members=2))
        run.run(Session(grouped(updates)), lambda done: None)
        state = [
            value for one in run.optimizer.state.values() for value in one.values() if value.ndim
        ]
        return sum(value.nbytes for value in (*updates.parameters.values(), *state))

    assert kept(9) - kept(4) == 5 * COMPONENTS * 4 * 3  # the code and its two moments


def test_one_member_is_refused():
    with pytest.raises(ValueError, match="two members at least"):
        made(members=1).space(("one",), "learned", "toy")
    untrained = LearnedUpdates(LAYOUT, MEMBERS, COMPONENTS, 0)
    with pytest.raises(ValueError, match="came out alike"):
        untrained.space(NAMES, "learned", "toy")


def test_sampled_codes_have_the_mean_and_covariance_of_the_members():
    updates, generator = made(members=6), torch.Generator().manual_seed(0)
    drawn = torch.stack([updates.sampled_code(generator) for _ in range(20_000)])
    codes = updates.codes.detach()
    torch.testing.assert_close(drawn.mean(dim=0), codes.mean(dim=0), rtol=0, atol=0.02)
    torch.testing.assert_close(drawn.T.cov(), codes.T.cov(), rtol=0, atol=0.01)


@pytest.mark.parametrize("members", [1, 2, 4])
def test_the_fit_by_other_codes_is_never_that_by_own_ones(members):
    """Also where a step has one member alone: it is compared with the next one."""
    updates = made()
    run = run_of(updates, members=members)
    own, others = run.fit(Session(grouped(updates)))
    assert abs(own - others) > 1e-4
    draw, expected = run.draw(-1), 0.0
    following = draw.members[1:] + draw.members[:1]
    if members == 1:
        following = [(draw.members[0] + 1) % MEMBERS]
    noise, session = draw.noise((6, 4)), Session(None)
    for row in draw.rows:
        code = updates.codes[following[draw.members.index(row.member)]].detach()
        changes = list(dense(updates, code).values())
        session.changed = lambda number, x, weight, changes=changes: (
            x @ (weight + changes[number].float()).T
        )
        sigma = torch.tensor([session.sigma(draw.percents[row.place])])
        noised = session.latents[row.image] + sigma * noise[row.place]
        condition = 20 if row.dropped else row.image
        answer = session.denoised(noised, sigma, [condition])
        error = (session.latents[row.image] - answer).square().mean() / sigma.square()
        expected += float(error.detach()) / len(draw.rows)
    assert others == pytest.approx(expected, rel=1e-3)
