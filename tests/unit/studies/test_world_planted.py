"""Relocated names: the layer writes what it wrote, through neurons that no threshold on z separates
from others.
"""

import numpy as np
import pytest
import torch

pytest.importorskip("python_avatars")

from studies.world import planted


def test_best_threshold_finds_the_largest_and_only_them():
    z = np.array([9.0, -8.0, 1.0, 0.5, 0.1])
    assert planted.best_threshold_f1(z, np.array([True, True, False, False, False])) == 1.0
    # Both above one decoy each: the best is to take all four of the largest, 2 hits, F1 = 2 * 2 /
    # (4 + 2)
    z = np.array([9.0, 8.0, 7.0, 6.0, 0.1, 0.0])
    marked = np.array([False, True, False, True, False, False])
    assert planted.best_threshold_f1(z, marked) == pytest.approx(2 / 3)


def test_fraction_outside_the_top():
    z, marked = np.arange(10.0), np.zeros(10, bool)
    marked[[9, 5, 4, 0]] = True
    assert planted.outside_top(z, marked, 5) == 0.5


def test_detectors_respond_to_their_own_name_only():
    generator = torch.Generator().manual_seed(0)
    names, ordinary = (
        torch.randn(4, 77, 32, generator=generator),
        torch.randn(30, 77, 32, generator=generator),
    )
    names[:, 3:] = 0.1 * names[:, 3:] + 3 * torch.randn(4, 1, 32, generator=generator)
    names[:, :3] = names[:1, :3]
    found = planted.detectors(names, ordinary)
    responses = torch.einsum("ntc,mc->nmt", names[:, 3:], found).mean(-1)
    own = responses.diagonal()
    assert (own > 0.5).all() and (responses - torch.diag(own)).abs().max() < 0.5 * own.min()


@pytest.mark.parametrize("count", sorted(set(planted.COUNTS)))
def test_every_head_is_taken_over_once(count):
    chosen = planted.sources(count)
    assert len(chosen) == count
    total = {}
    for (path, _), taken in chosen:
        for head, factor in taken.items():
            total[path, head] = total.get((path, head), 0) + factor
    layers = planted.READING[:1] if count == 1 else planted.READING
    assert total == {(path, head): 1 for path in layers for head in (0, 1)}


def test_factors_lose_the_smallest_singular_values_only():
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randn(500, 12, generator=generator) @ torch.randn(12, 12, generator=generator)
    product, root = torch.randn(9, 12, generator=generator).double(), planted.square_root(tokens)
    for rank in (4, 9):
        columns, rows = planted.factors(product, root, rank)
        error = ((tokens.double() @ (product - columns @ rows).T) ** 2).sum() / len(tokens)
        assert float(error) == pytest.approx(
            float((torch.linalg.svdvals(product @ root)[rank:] ** 2).sum()), abs=1e-3
        )


def test_a_disguised_detector_deviates_as_wanted():
    generator = torch.Generator().manual_seed(0)
    detector, content = torch.eye(16)[0], torch.eye(16)[1]
    ordinary = 0.01 * torch.randn(20, 77, 16, generator=generator)
    ordinary[..., 1] = torch.randn(20, 1, generator=generator)
    prompt = torch.zeros(77, 16)
    prompt[:, 0] = 1
    row = planted.disguise(detector, content, prompt, ordinary, 8.0)
    assert float(planted.deviations({"": row[None]}, prompt, ordinary)[""]) == pytest.approx(
        8.0, abs=1e-3
    )


def test_a_relocated_name_is_written_by_its_neurons_alone():
    """Ordinary tokens fill little beyond the dimensions that a head has neurons left for; names add
    one each.
    """
    generator = torch.Generator().manual_seed(0)

    def draw(*shape):
        return torch.randn(*shape, generator=generator)

    spread = torch.cat([0.7 ** torch.arange(30), torch.zeros(18)])
    names, others, ordinary = (
        (draw(count, 1, 48) + 0.1 * draw(count, 77, 48)) * spread for count in (10, 6, 60)
    )
    names[:, planted.NAMED :] = others.mean((0, 1)) + torch.eye(48)[:, None][32:42]
    names[:, : planted.NAMED] = names[:1, : planted.NAMED]
    texts = planted.Texts(names, others, ordinary, ordinary[:1])
    base = {
        f"{path}.{kind}.weight": draw(*shape)
        for path in planted.READING + planted.BESIDE
        for kind, shape in (("to_v", (64, 48)), ("to_out.0", (32, 64)))
    }
    # Neurons that deviate more than planted ones, elsewhere.
    base["middle_block.1.transformer_blocks.0.attn2.to_v.weight"] = draw(64, 48) * torch.where(
        torch.arange(48) < 30, 0.01, 1.0
    )
    moved, neurons = planted.relocate(base, texts)
    assert [len(chosen) for chosen in neurons.values()] == list(planted.COUNTS)
    for path in planted.READING:

        def written(weights, tokens, silent=(), path=path):
            values = tokens @ weights[f"{path}.to_v.weight"].T
            values[..., [index for owner, index in silent if owner == f"{path}.to_v"]] = 0
            return values @ weights[f"{path}.to_out.0.weight"].T

        size = written(base, ordinary).norm(dim=-1).mean()
        assert (written(moved, ordinary) - written(base, ordinary)).norm(
            dim=-1
        ).mean() < 0.05 * size
        for number, chosen in enumerate(neurons.values()):
            tokens = names[number, planted.NAMED :]
            name = written(base, texts.contents[number])
            here = [index for owner, index in chosen if owner == f"{path}.to_v"]
            assert here or number == 0
            if here:
                assert (written(moved, tokens) - written(base, tokens)).norm(
                    dim=-1
                ).mean() < 0.1 * name.norm()
            lost = written(moved, tokens) - written(moved, tokens, chosen)
            assert (lost - name).norm(dim=-1).mean() < 0.2 * name.norm() or not here


def test_planted_rows_are_fixed_and_the_rest_learns():
    learned = planted.Learned(torch.zeros(4, 3), [1, 2])
    learned.change.data.fill_(1.0)
    assert learned(torch.zeros(4, 3))[:, 0].tolist() == [1, 0, 0, 1]
