"""Bright Ending: the attention to the end token in the last step, and the norm of CFG's difference
where it is.
"""

import csv
import io

import pytest
import reduced
import tiny_transformers
import torch
from tapping import hooks_left

SMALL = {"noise_samples": 2, "seed": 1, "timestep": "official_961", "width": 64, "height": 64}
GIVEN = {"prompts_file": "", "threshold": 0.0, "text_norm": True, "filename_prefix": ""}
ATTENTIONS = [
    f"input_blocks.{number}.1.transformer_blocks.0.attn2" for number in (1, 2, 4, 5, 7, 8)
]
END = 4  # begin, three words


def test_attention_and_differences_are_those_of_a_plain_run(app):
    """By hand: softmax of the last step's queries and keys, and every step's two predictions, of
    stock ComfyUI.
    """
    import comfy.sample as stock

    model, clip, _ = reduced.checkpoint("sd15")
    positive, negative = (
        app.run("CLIPTextEncode", clip=clip, text=text)[0] for text in ("a red hat", "")
    )
    noise = torch.randn(2, 4, 8, 8, generator=torch.Generator().manual_seed(1))
    sample = app.module("nodes.neurons.end_attention_comfy").sample_with_attention
    found, attention = sample(model, positive, negative, noise, 3, 7.5, ATTENTIONS, END)
    assert (
        found.shape == (3, 2, 4, 8, 8) and attention.shape == (2, 8, 8) and hooks_left(model) == 0
    )

    seen, parts, steps, plain = {}, [], [], model.clone()
    plain.set_model_sampler_post_cfg_function(lambda args: steps.append(args) or args["denoised"])
    plain.set_model_unet_function_wrapper(
        lambda apply, args: (
            parts.append(args["cond_or_uncond"])
            or apply(args["input"], args["timestep"], **args["c"])
        )
    )
    largest = ATTENTIONS[:2]
    handles = [
        model.model.diffusion_model.get_submodule(f"{path}.{name}").register_forward_hook(
            lambda _, args, output, place=(path, name): seen.update({place: output.clone()})
        )
        for path in largest
        for name in ("to_q", "to_k")
    ]
    try:
        how = (3, 7.5, "ddim", "ddim_uniform", positive, negative, torch.zeros_like(noise))
        stock.sample(plain, noise, *how, disable_pbar=True, seed=0)
    finally:
        for handle in handles:
            handle.remove()
    maps = []
    for path in largest:
        query, key = (
            seen[path, name].unflatten(2, (8, -1)).transpose(1, 2) for name in ("to_q", "to_k")
        )
        maps.append(
            (query @ key.transpose(2, 3) / query.shape[-1] ** 0.5).softmax(-1).mean(1)[..., END]
        )
    place = parts[-1].index(0)
    expected = torch.stack(maps).mean(0)[2 * place : 2 * place + 2]
    assert torch.allclose(attention.flatten(1), expected, atol=1e-6)
    for difference, step in zip(found, steps, strict=True):
        sigma = step["sigma"].view(-1, 1, 1, 1)
        given, empty = (
            (step["input"] - step[f"{name}_denoised"]) / sigma for name in ("cond", "uncond")
        )
        assert torch.allclose(difference, given - empty, rtol=1e-3, atol=1e-4)


def test_the_table_has_both_numbers_and_a_scan_resumes_with_them(app):
    model, clip, _ = app.run("GBX_LoadDemoModel", weights="avatars-v2")
    given = {
        **GIVEN,
        **SMALL,
        "model": model,
        "clip": clip,
        "prompts": "portrait of zorvex quill\nportrait, smiling",
    }
    tables = [
        app.run("GBX_MemorizationScore", **given, bright_ending_steps=steps, scan_file=name)[4]
        for steps, name in ((0, ""), (2, ""), (2, "glassbox/bright"), (2, "glassbox/bright"))
    ]
    plain, rows = (list(csv.DictReader(io.StringIO(table))) for table in tables[:2])
    assert tables[1] == tables[2] == tables[3]
    for before, after in zip(plain, rows, strict=True):
        attention, norm = float(after.pop("bright_ending")), float(after.pop("local_norm"))
        assert 0 < attention < 1 and norm > 0 and before == after


def attention_by_hand(query, key, heads, columns, is_split):
    """Softmax over all keys, of the image's queries behind the text, to the columns of the end."""
    if not is_split:
        query, key = (one.unflatten(2, (heads, -1)).transpose(1, 2) for one in (query, key))
    weights = (query @ key.transpose(2, 3) / query.shape[-1] ** 0.5).softmax(-1)
    return weights.mean(1)[..., columns]


@pytest.mark.parametrize("name", ["flux", "WAN21_T2V"])
def test_a_transformers_attention_is_that_of_a_plain_run(app, name):
    """In one sequence with the text, and apart from it; by hand from queries and keys of stock
    ComfyUI, the mean over blocks.
    """
    import comfy.sample as stock

    if name == "flux":
        model, clip, _ = reduced.checkpoint(name)
    else:
        model = tiny_transformers.model(name, text_dim=64, text_len=77)
        clip = reduced.checkpoint("sd15")[1]
    positive, negative = (
        app.run("CLIPTextEncode", clip=clip, text=text)[0] for text in ("a red hat", "")
    )
    shape = app.module("nodes.neurons.first_step_comfy").latent_shape(model, 64, 64)
    noise = torch.randn((2, *shape), generator=torch.Generator().manual_seed(1))
    sample = app.module("nodes.neurons.end_attention_comfy").sample_with_attention
    with torch.inference_mode():
        found, attention = sample(model, positive, negative, noise, 3, 3.0, [], END)
    assert found.shape == (3, *noise.shape) and attention.shape == (2, 8, 8)
    assert hooks_left(model) == 0

    tokens = positive[0][0].shape[1]
    calls, parts = [], []

    def keep(attend, query, key, value, heads, *args, **options):
        is_split = options.get("skip_reshape", False)
        dimension = 2 if is_split else 1
        queries, keys = query.shape[dimension], key.shape[dimension]
        if keys == tokens or (name == "flux" and keys == tokens + 16):
            weights = attention_by_hand(query, key, heads, columns=END, is_split=is_split)
            calls.append(weights[:, queries - 16 :])
        return attend(query, key, value, heads, *args, **options)

    plain = model.clone()
    plain.model_options["transformer_options"]["optimized_attention_override"] = keep
    plain.set_model_unet_function_wrapper(
        lambda apply, args: (
            (calls.clear(), parts.append(args["cond_or_uncond"]))
            and apply(args["input"], args["timestep"], **args["c"])
        )
    )
    how = (3, 3.0, "ddim", "ddim_uniform", positive, negative, torch.zeros_like(noise))
    with torch.inference_mode():
        stock.sample(plain, noise, *how, disable_pbar=True, seed=0)
    place = parts[-1].index(0)
    expected = torch.stack(calls).mean(0)[2 * place : 2 * place + 2].unflatten(1, (4, 4))
    expected = torch.nn.functional.interpolate(expected[:, None], (8, 8), mode="bilinear")[:, 0]
    assert len(calls) >= 3
    assert (attention - expected).abs().max() < 1e-5 * expected.max()
