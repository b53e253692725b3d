"""A transformer over text and image that hands its attentions over as ComfyUI's do."""

import torch
from glassbox.nodes.host.attention import reader
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

WIDTH = 8
HEADS = 2
IMAGE = 6


def attend(query, key, value, heads, mask=None, attn_precision=None, **options):
    """As ComfyUI's function: an override is handed the call."""
    override = options.get("transformer_options", {}).get(reader.OVERRIDE)
    if override is not None:
        options.pop("transformer_options")
        return override(attend, query, key, value, heads, mask, attn_precision, **options)
    is_split = options.get("skip_reshape", False)
    channels = query.shape[-1] if is_split else query.shape[-1] // heads
    if not is_split:
        query, key, value = (
            one.unflatten(-1, (-1, channels)).transpose(1, 2) for one in (query, key, value)
        )
    output = scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        scale=options.get("scale"),
        enable_gqa=options.get("enable_gqa", False),
    )
    if options.get("skip_output_reshape"):
        return output
    return output.transpose(1, 2).flatten(2)


class Block(nn.Module):
    """Registers, text and image in one sequence, or the image and then the text it reads."""

    def __init__(self, is_joint: bool):
        super().__init__()
        self.is_joint = is_joint

    def forward(self, image, text, options):
        if self.is_joint:
            tokens = torch.cat([torch.ones(len(image), 2, WIDTH), text, image], 1)
            tokens = tokens + attend(tokens, tokens, tokens, HEADS, transformer_options=options)
            return tokens[:, -image.shape[1] :], tokens[:, 2 : -image.shape[1]]
        image = image + attend(image, image, image, HEADS, transformer_options=options)
        return image + attend(image, text, text, HEADS, transformer_options=options), text


class Network(nn.Module):
    def __init__(self, *lists):
        super().__init__()
        for number, is_joint in enumerate(lists):
            blocks = nn.ModuleList([Block(is_joint), Block(is_joint)])
            self.add_module(f"blocks{number}", blocks)
        self.evaluated = 0

    def forward(self, x, timesteps, context, transformer_options):
        self.evaluated += 1
        image, text = x.flatten(2).transpose(1, 2), context
        for blocks in self.children():
            for block in blocks:
                image, text = block(image, text, transformer_options)
        return image.transpose(1, 2).unflatten(2, x.shape[2:])


def optimized_attention(query, key, value, heads, **options):
    """Under the name that ComfyUI's function has in the modules of networks."""
    return attend(query, key, value, heads, **options)


class SilentBlock(nn.Module):
    def forward(self, image, text):
        image = image + optimized_attention(image, image, image, HEADS)
        return image + optimized_attention(image, text, text, HEADS)


class SilentNetwork(nn.Module):
    """Hands no options to its attention, as PixArt."""

    def __init__(self):
        super().__init__()
        self.blocks = nn.ModuleList([SilentBlock(), SilentBlock()])

    def forward(self, x, timesteps, context, transformer_options):
        image = x.flatten(2).transpose(1, 2)
        for block in self.blocks:
            image = block(image, context)
        return image.transpose(1, 2).unflatten(2, x.shape[2:])


class PaddedNetwork(nn.Module):
    """Text behind ``before`` and in front of ``behind`` tokens of padding, all of which read each
    other first, as Z-Image's.
    """

    def __init__(self, before: int, behind: int):
        super().__init__()
        self.before = before
        self.behind = behind
        self.blocks = nn.ModuleList([Block(True)])

    def forward(self, x, timesteps, context, transformer_options):
        image = x.flatten(2).transpose(1, 2)
        padding = (torch.ones(len(x), count, WIDTH) for count in (self.before, self.behind))
        before, behind = padding
        text = torch.cat([before, context, behind], 1)
        text = text + attend(text, text, text, HEADS, transformer_options=transformer_options)
        for block in self.blocks:
            image, text = block(image, text, transformer_options)
        return image.transpose(1, 2).unflatten(2, x.shape[2:])
