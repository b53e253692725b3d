"""A step of Train LoRA beside plain PyTorch with PEFT, and beside what the node did before:
whole-weight gradients.

The same layers, factors, image, noise and AdamW in one process, in turns; of the demo model, and of
SD1.5 in its real size on random weights. Peaks are the bytes of all tensors that a step makes,
counted as long as they live.
"""

from __future__ import annotations

import copy
from unittest import mock

import torch
from torch import nn

from studies.common import host, results
from studies.common.turns import times, timing_numbers

from ..activations.memory import counted

_RANK, _SIDE, _NODE, _WHOLE, _PEFT = (
    8,
    32,
    "Train LoRA",
    "whole-weight gradients",
    "PyTorch with PEFT",
)


def measure(turns: int = 96) -> dict[str, dict]:
    """The demo model, one image of latent 16 x 16."""
    from studies.world.generate import Generator
    from studies.world.release import WORLD

    generator = Generator.load(WORLD)
    latent = torch.randn(1, 24, 16, 16, generator=torch.Generator().manual_seed(0))
    return _measure("demo model", generator.model, latent, generator.condition(["portrait"]), turns)


def measure_large(turns: int = 5) -> dict[str, dict]:
    """SD1.5's shape, one image of latent 32 x 32."""
    from ..weights.network import sd15_model

    draws = torch.Generator().manual_seed(0)
    condition = [[torch.randn(1, 77, 768, generator=draws), {}]]
    latent = torch.randn(1, 4, _SIDE, _SIDE, generator=draws)
    return _measure(
        "SD1.5's shape", sd15_model(torch.float32, filled=True), latent, condition, turns
    )


def _measure(where: str, patcher, latent, condition, turns: int) -> dict[str, dict]:
    adapters, train = (
        host.pack("nodes.host.training.adapters"),
        host.pack("nodes.host.training.trainer"),
    )
    layer_weights = host.pack("nodes.host.training.layer_weights")
    noise = torch.randn(latent.shape, generator=torch.Generator().manual_seed(1))
    made = {
        name: adapters.create(patcher, "LoRA", _RANK, torch.float32, 0, {})
        for name in (_NODE, _WHOLE)
    }
    for each in made.values():
        _fill(each.parameters)
    rival, trained = _peft(patcher, made[_NODE].parameters)
    steps, gradients, peaks = {}, {}, {}

    context, vector = _words(patcher, train, latent, condition)

    def rival_step(session) -> None:
        sigma = torch.tensor([session.sigma(0.4)])
        noised = session.noised(session.latents[0], noise, sigma)
        x = session.sampling.calculate_input(sigma, noised)
        predicted = rival(x, session.sampling.timestep(sigma).float(), context, y=vector)
        answer = session.sampling.calculate_denoised(sigma, predicted, noised)
        (answer - session.clean(session.latents[0])).square().mean().backward()

    def node_step(session) -> None:
        sigma = torch.tensor([session.sigma(0.4)])
        answer = session.denoised(session.noised(session.latents[0], noise, sigma), sigma, [0])
        (answer - session.clean(session.latents[0])).square().mean().backward()

    def contender(name: str, session, parameters: dict[str, nn.Parameter], step):
        optimizer = torch.optim.AdamW([p for p in parameters.values() if p.requires_grad], lr=1e-5)

        def whole() -> None:
            step(session)
            optimizer.step()
            optimizer.zero_grad()

        step(session)
        gradients[name] = {
            key: p.grad.flatten().clone() for key, p in parameters.items() if p.requires_grad
        }
        whole()
        peaks[name] = counted(whole)[0]
        return whole

    def nested(session) -> None:
        steps[_NODE] = contender(_NODE, session, made[_NODE].parameters, node_step)
        steps[_PEFT] = contender(_PEFT, session, trained, rival_step)
        measured = times({name: steps[name] for name in (_NODE, _PEFT)}, turns, alone=True)
        numbers.update(
            timing_numbers(where, measured, _PEFT, f"a step of one image, rank {_RANK}, float32")
        )

    def before(session) -> None:
        step = contender(_WHOLE, session, made[_WHOLE].parameters, node_step)
        measured = times({_WHOLE: step}, max(turns // 2, 1), alone=True)
        numbers.update(
            timing_numbers(where, measured, _WHOLE, f"a step of one image, rank {_RANK}, float32")
        )

    numbers: dict[str, dict] = {}
    with torch.inference_mode(False):
        train.run(
            patcher, made[_NODE].functions, [latent], [condition], nested, dtype=torch.float32
        )
        with mock.patch.object(layer_weights, "low_rank", lambda function: None):
            train.run(
                patcher, made[_WHOLE].functions, [latent], [condition], before, dtype=torch.float32
            )
    expected = torch.cat(list(gradients[_PEFT].values()))
    for name in (_NODE, _WHOLE):
        found = torch.cat([gradients[name][key] for key in gradients[_PEFT]])
        what = f"norm of the difference over PEFT's norm, {len(gradients[name])} parameters"
        apart = float((found - expected).norm() / expected.norm())
        numbers[f"{where}, gradient of {name} apart"] = results.number(apart, 1, "fraction", what)
    for name, peak in peaks.items():
        what = f"bytes of the tensors of a step of one image, rank {_RANK}, float32; counted"
        numbers[f"{where}, {name}, peak memory"] = results.number(peak / 1e6, 1, "MB", what)
    return numbers


def _words(patcher, train, latent, condition) -> tuple[torch.Tensor, torch.Tensor | None]:
    """What the network is handed beside the image: the embedding, and the vector of models that
    have one.
    """
    handed: list[tuple] = []

    def work(session) -> None:
        hook = lambda _network, _args, given: handed.append((given["context"], given.get("y")))  # noqa: E731
        handle = patcher.model.diffusion_model.register_forward_pre_hook(hook, with_kwargs=True)
        with torch.no_grad():
            session.denoised(session.latents[0], torch.ones(1), [0])
        handle.remove()

    with torch.inference_mode(False):
        train.run(patcher, {}, [latent], [condition], work, dtype=torch.float32)
    return handed[0]


def _fill(parameters: dict[str, nn.Parameter]) -> None:
    """Factors away from zero, where half of the gradients vanish."""
    draws = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for parameter in parameters.values():
            if parameter.requires_grad:
                parameter.copy_(0.02 * torch.randn(parameter.shape, generator=draws))


def _peft(
    patcher, parameters: dict[str, nn.Parameter]
) -> tuple[nn.Module, dict[str, nn.Parameter]]:
    """The bare network on the same memory with PEFT's LoRA of the same factors, and its parameters
    by our names.
    """
    from peft import LoraConfig, inject_adapter_in_model

    source = patcher.model.diffusion_model
    with torch.inference_mode(False):
        memo = {}
        for tensor in (*source.parameters(), *source.buffers()):
            shared = torch.empty(0).set_(
                tensor.untyped_storage(), tensor.storage_offset(), tensor.shape, tensor.stride()
            )
            memo[id(tensor)] = (
                nn.Parameter(shared, requires_grad=False)
                if isinstance(tensor, nn.Parameter)
                else shared
            )
        network = copy.deepcopy(source, memo)
        vectors = {key: p for key, p in parameters.items() if key.endswith((".diff", ".diff_b"))}
        layers = {
            key.removesuffix(".lora_up.weight")
            for key in parameters
            if key.endswith(".lora_up.weight")
        }
        config = LoraConfig(
            r=_RANK,
            lora_alpha=1.0,
            target_modules=[key.removeprefix("diffusion_model.") for key in layers],
        )
        inject_adapter_in_model(config, network)
        trained: dict[str, nn.Parameter] = {}
        for name in layers:
            layer = network.get_submodule(name.removeprefix("diffusion_model."))
            for side, part in (("up", layer.lora_B["default"]), ("down", layer.lora_A["default"])):
                part.weight.data.copy_(
                    parameters[f"{name}.lora_{side}.weight"].view(part.weight.shape)
                )
                trained[f"{name}.lora_{side}.weight"] = part.weight
        for key, value in vectors.items():
            path, _, end = key.removeprefix("diffusion_model.").rpartition(".")
            layer = network.get_submodule(path)
            layer, kind = getattr(layer, "base_layer", layer), "weight" if end == "diff" else "bias"
            changed = nn.Parameter(getattr(layer, kind).detach() + value.detach())
            setattr(layer, kind, changed)
            trained[key] = changed
    return network, trained
