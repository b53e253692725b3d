"""Many LoRAs in one batch: with one identity it is PEFT's LoRA, and identities do not touch each
other.
"""

import copy

import pytest
import torch
from torch import nn

from studies.weights import grouped, population

STEPS, RATE = 6, 0.02


class Attention(nn.Module):
    """Queries and values of one attention block by diffusers' names."""

    def __init__(self, width: int, context: int):
        super().__init__()
        self.to_q, self.to_v = (
            nn.Linear(width, width, bias=False),
            nn.Linear(context, width, bias=False),
        )
        self.to_k = nn.Linear(context, width, bias=False)

    def forward(self, x, context):
        weights = (self.to_q(x) @ self.to_k(context).transpose(1, 2)).softmax(-1)
        return weights @ self.to_v(context)


class Network(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.mid_block = nn.ModuleDict({"attn1": Attention(12, 12), "attn2": Attention(12, 20)})

    def forward(self, x, context):
        x = x + self.mid_block["attn1"](x, x)
        return x + self.mid_block["attn2"](x, context)


@pytest.fixture
def network():
    return Network().requires_grad_(False)


@pytest.fixture(params=[1, 3], ids=["rank 1", "rank 3"])
def layout(request, network):
    return grouped.attention_layout(network, request.param, 27.0 * request.param)


def data(count, rows, seed=1):
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(STEPS, count * rows, *shape, generator=generator)
        for shape in ((5, 12), (7, 20), (5, 12))
    ]


def trained(network, layout, count, rows, given):
    population = grouped.Population(layout, count, seed=0)
    optimizer = torch.optim.AdamW([population.flat], lr=RATE, weight_decay=0.01)
    with grouped.adapted(network, population):
        for x, context, target in zip(*given, strict=True):
            error = (network(x, context) - target).square().mean((1, 2)).view(count, rows)
            optimizer.zero_grad()
            error.mean(dim=1).sum().backward()
            optimizer.step()
    return population.flat.detach()


def test_with_one_identity_it_is_pefts_lora(app, network, layout):
    """The same start, data and optimizer: factors after six steps of AdamW agree to 1e-6."""
    import peft

    config = peft.LoraConfig(
        r=layout.rank, lora_alpha=layout.alpha, target_modules=["to_q", "to_v"]
    )
    model = peft.get_peft_model(copy.deepcopy(network), config)
    start = layout.unflatten(grouped.initial(layout, seed=0))
    named = {slot.layer: slot for slot in layout.slots}
    for name, module in model.named_modules():
        layer = name.removeprefix("base_model.model.")
        if layer in named:
            module.lora_A["default"].weight.data.copy_(start[layer].down)
            module.lora_B["default"].weight.data.copy_(start[layer].up)
    optimizer = torch.optim.AdamW(
        [p for p in model.parameters() if p.requires_grad], lr=RATE, weight_decay=0.01
    )
    given = data(1, 2)
    for x, context, target in zip(*given, strict=True):
        optimizer.zero_grad()
        (model(x, context) - target).square().mean((1, 2)).mean().backward()
        optimizer.step()
    flat = trained(network, layout, 1, 2, given)[0]
    factors = layout.unflatten(flat)
    for name, module in model.named_modules():
        layer = name.removeprefix("base_model.model.")
        if layer in named:
            torch.testing.assert_close(
                factors[layer].down, module.lora_A["default"].weight, atol=1e-6, rtol=1e-5
            )
            torch.testing.assert_close(
                factors[layer].up, module.lora_B["default"].weight, atol=1e-6, rtol=1e-5
            )
    assert flat.abs().sum() != grouped.initial(layout, 0).abs().sum()


def test_identities_do_not_touch_each_other(network, layout):
    """Three identities at once come out as each of them alone."""
    given = data(3, 2)
    together = trained(network, layout, 3, 2, given)
    for person in range(3):
        alone = [part[:, 2 * person : 2 * person + 2] for part in given]
        torch.testing.assert_close(
            together[person], trained(network, layout, 1, 2, alone)[0], atol=1e-5, rtol=1e-4
        )


def test_the_network_is_left_as_it_was(network, layout):
    before = [type(module) for module in network.modules()]
    x, context, _ = (part[0] for part in data(1, 1))
    plain = network(x, context)
    population = grouped.Population(layout, 1, seed=0)
    with pytest.raises(RuntimeError, match="stopped"), grouped.adapted(network, population):
        assert torch.equal(network(x, context), plain)  # up is zero at the start
        raise RuntimeError("stopped")
    assert [type(module) for module in network.modules()] == before


def test_the_factors_are_those_that_a_file_gives(network, layout):
    """What a population's row does to the network is what its LoRA does to the weights."""
    flat = torch.randn(layout.size, generator=torch.Generator().manual_seed(2)) * 0.1
    population = grouped.Population(layout, 1, seed=0)
    population.flat.data.copy_(flat)
    x, context, _ = (part[0] for part in data(1, 2))
    with grouped.adapted(network, population):
        adapted = network(x, context)
    merged = copy.deepcopy(network)
    for layer, factors in layout.unflatten(flat).items():
        merged.get_submodule(layer).weight.data += torch.mm(*factors.matrices())
    torch.testing.assert_close(adapted, merged(x, context), atol=1e-4, rtol=1e-4)


def _descended(optimizer, value, gradients):
    for gradient in gradients:
        value.grad = gradient
        optimizer.step()
    return value.detach()


def test_one_row_takes_the_steps_of_adam():
    """torch.optim.Adam is the reference: ten steps agree to 1e-6."""
    gradients = torch.randn(10, 1, 40, generator=torch.Generator().manual_seed(1))
    ours, theirs = (nn.Parameter(torch.ones(1, 40)) for _ in range(2))
    given = {"lr": RATE, "betas": (0.9, 0.99)}
    found = _descended(population.CommonAdam([ours], **given), ours, gradients)
    assert torch.allclose(
        found, _descended(torch.optim.Adam([theirs], **given), theirs, gradients), atol=1e-6
    )


def test_rows_move_in_proportion_to_their_gradients():
    gradients = torch.randn(10, 1, 40, generator=torch.Generator().manual_seed(2)) * torch.tensor(
        [[1.0], [-2.0]]
    )
    value = nn.Parameter(torch.zeros(2, 40))
    found = _descended(population.CommonAdam([value], lr=RATE), value, gradients)
    assert torch.allclose(found[1], -2 * found[0], atol=1e-6) and found[0].abs().mean() > RATE


def test_members_get_the_same_noise_and_noise_levels():
    trainer = population.Trainer.__new__(population.Trainer)
    trainer.plan, trainer.alphas = population.Plan(), torch.linspace(1, 0, 1000)
    latents = torch.zeros(6, 24, 4, 4)
    noised, timesteps, noise, _ = trainer.noised(
        latents, torch.Generator().manual_seed(3), groups=3
    )
    assert torch.equal(noise[:2], noise[4:]) and torch.equal(timesteps[:2], timesteps[4:])
    assert torch.equal(noised[:2], noised[2:4]) and not torch.equal(noise[0], noise[1])
    assert timesteps.min() >= trainer.plan.earliest
