"""Other published ways to change words in an existing image, beside Edit by Words from the image's
own noise: `python run.py study noise edits`.

The 24 rendered faces and four attributes of `study activations words`; the judge reads everything.
FlowEdit (Kulikov et al., arXiv 2412.08629) is Edit Image by Prompts. Null prompts (Mokady et al.,
arXiv 2211.09794, section 3): the negative prompt of each step is trained until CFG follows the
image's own path. Masked image to image: the changed prompt where the word's heat map says.
"""

from __future__ import annotations

import functools
from itertools import pairwise

import torch

from ..activations import words
from ..activations.steering import CFG
from ..common import host, results
from ..common.bare_network import BareNetwork

#: Inputs of the node that are not its defaults.
FLOW_EDITS = {
    "FlowEdit": {"steps": words.STEPS},
    "FlowEdit at CFG 6": {"steps": words.STEPS, "target_cfg": 6.0},
    "FlowEdit at denoise .6": {"steps": words.STEPS, "denoise": 0.6},
    "FlowEdit at denoise .6, CFG 6": {"steps": words.STEPS, "denoise": 0.6, "target_cfg": 6.0},
    "FlowEdit in 20 steps": {},
}
#: Denoise and guidance.
NULL_PROMPTS = {"null prompts": (0.6, 3.0), "null prompts at denoise .8": (0.8, 3.0)}
#: Denoise, and the fraction of the heat map's range from which on the mask is 1; None: the map.
MASKED = {
    "masked prompt": (0.6, None),
    "masked prompt at denoise .8": (0.8, None),
    "masked prompt at denoise .8, cut at .3": (0.8, 0.3),
}
ROUNDS, RATE = 10, 1e-2
#: Edit by Words from the image's own noise, corrected: denoise and strength.
OURS = {
    "edit 2": (0.6, 2.0),
    "edit 1 at denoise .8": (0.8, 1.0),
    "edit 2 at denoise .8": (0.8, 2.0),
}
DEFAULT = "edit 2"
QUICK_FACES = 4


def levels(sampling, steps: int, denoise: float) -> torch.Tensor:
    """The noise levels (steps + 1,) of KSampler's "normal" schedule at a denoise."""
    import comfy.samplers

    every = comfy.samplers.calculate_sigmas(sampling, "normal", int(steps / denoise))
    return every[-(steps + 1) :].float()


def guided(
    network: BareNetwork,
    x: torch.Tensor,
    sigma: torch.Tensor,
    contexts: tuple[torch.Tensor, torch.Tensor],
    cfg: float,
) -> torch.Tensor:
    """The noise in x (1, C, H, W) by the network with CFG; contexts: positive, negative."""
    rows = network.clean(x.expand(2, -1, -1, -1), sigma.expand(2), torch.cat(contexts))
    positive, negative = ((x - clean) / sigma for clean in rows.split(1))
    return negative + cfg * (positive - negative)


def flow_edit(
    edited, latent: torch.Tensor, captions: tuple[str, str], seed: int, **inputs: float
) -> torch.Tensor:
    """The edited latent by Edit Image by Prompts, in the VAE's scale; ``captions``: the image's and
    the changed one. ``inputs``: those that are not the node's defaults.
    """
    node = host.pack("nodes.noise.nodes_flow_edit").FlowEdit
    defaults = {field.id: getattr(field, "default", None) for field in node.define_schema().inputs}
    source, target, negative = map(edited.encode, (*captions, ""))
    given = {
        "model": edited.model,
        "source": source,
        "target": target,
        "negative": negative,
        "latent": {"samples": latent},
        "seed": seed,
    }
    output = node.execute(**(defaults | given | inputs))
    return output.args[0]["samples"]


@torch.no_grad()
def own_path(
    network: BareNetwork, image: torch.Tensor, context: torch.Tensor, sigmas: torch.Tensor
) -> list[torch.Tensor]:
    """Latents at every noise level, Euler steps upward from the image at guidance 1; in the order
    of ``sigmas``, which fall to 0.
    """
    path = [image]
    upward = sigmas.flip(0)
    for sigma, following in pairwise(upward):
        x = path[-1]
        level = sigma if sigma > 0 else following
        predicted = (x - network.clean(x, level.expand(1), context)) / level
        path.append(x + (following - sigma) * predicted)
    return path[::-1]


def null_prompts(
    network: BareNetwork,
    path: list[torch.Tensor],
    contexts: tuple[torch.Tensor, torch.Tensor],
    sigmas: torch.Tensor,
    cfg: float,
) -> list[torch.Tensor]:
    """For each step the negative context with which CFG leads along the path; ``contexts``: the
    image's caption, the empty one.
    """
    caption, empty = contexts
    x = path[0]
    trained = empty.clone()
    found = []
    for step, (sigma, following) in enumerate(pairwise(sigmas)):
        with torch.no_grad():
            positive = (x - network.clean(x, sigma.expand(1), caption)) / sigma
        trained = trained.detach().clone().requires_grad_(True)
        optimizer = torch.optim.Adam([trained], lr=RATE * (1 - step / (2 * len(sigmas))))
        for _ in range(ROUNDS):
            negative = (x - network.clean(x, sigma.expand(1), trained)) / sigma
            reached = x + (following - sigma) * (negative + cfg * (positive - negative))
            loss = (reached - path[step + 1]).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        trained = trained.detach()
        found.append(trained)
        with torch.no_grad():
            x = x + (following - sigma) * guided(network, x, sigma, (caption, trained), cfg)
    return found


@torch.no_grad()
def along(
    network: BareNetwork,
    x: torch.Tensor,
    context: torch.Tensor,
    negatives: list[torch.Tensor],
    sigmas: torch.Tensor,
    cfg: float,
) -> torch.Tensor:
    """Euler steps from x with a negative context for each."""
    for negative, (sigma, following) in zip(negatives, pairwise(sigmas), strict=True):
        x = x + (following - sigma) * guided(network, x, sigma, (context, negative), cfg)
    return x


def word_mask(edited, latent: torch.Tensor, caption: str, words: str) -> torch.Tensor:
    """The heat map (1, H, W) of words of the image's caption, in 0..1, by Layer Activation Tap and
    Token Heat Map.
    """
    tap = host.pack("nodes.activations.nodes_tap").LayerActivationTap
    heat = host.pack("nodes.activations.nodes_token_heatmap").TokenHeatMap
    tapped = tap.execute(
        model=edited.model,
        positive=edited.encode(caption),
        preset="cross_attention_mean",
        ids="",
        noise_unit="percent",
        level=0.6,
        seed=0,
        noise_samples=4,
        pool_size=1,
        precision="fp32",
        latent={"samples": latent},
    )
    side = 8 * latent.shape[-1]
    shown = heat.execute(
        activations=tapped.result[0],
        image=torch.zeros(1, side, side, 3),
        clip=edited.clip,
        prompt=caption,
        words=words,
        prompt_role="positive",
        normalize_per_word=True,
        opacity=0.5,
    )
    return shown.result[1]


class Rivals:
    """The rivals on one image: latent (1, C, H, W) as the VAE encodes it, with its caption."""

    def __init__(self, edited, latent: torch.Tensor, caption: str, steps: int):
        self._edited = edited
        self._latent = latent.clone()
        self._caption = caption
        self._steps = steps
        self._network = BareNetwork(edited.model, autocast=False)
        self._format = edited.model.get_model_object("latent_format")
        self._image = self._format.process_in(self._latent)
        self._negatives: dict[str, tuple] = {}

    def images(self, pair: tuple[str, str], seed: int) -> dict[str, torch.Tensor]:
        """Images by method, of one edit: words of the caption, and those instead of them."""
        with torch.inference_mode(False):
            latents = self._latents(pair, seed)
        decoded = {name: self._decoded(latent) for name, latent in latents.items()}
        return self._flow_edited(pair, seed) | decoded | self._masked(pair, seed)

    @torch.inference_mode()
    def _flow_edited(self, pair: tuple[str, str], seed: int) -> dict[str, torch.Tensor]:
        captions = (self._caption, self._caption.replace(*pair))
        return {
            name: self._edited._vae.decode(
                flow_edit(self._edited, self._latent, captions, seed, **inputs)
            )
            for name, inputs in FLOW_EDITS.items()
        }

    def _latents(self, pair: tuple[str, str], seed: int) -> dict[str, torch.Tensor]:
        sampling = self._network.sampling
        changed = self._caption.replace(*pair)
        before, after, empty = map(self._context, (self._caption, changed, ""))
        found = {}
        for name, (denoise, cfg) in NULL_PROMPTS.items():
            sigmas = levels(sampling, self._steps, denoise)
            if name not in self._negatives:
                path = own_path(self._network, self._image, before, sigmas)
                trained = null_prompts(self._network, path, (before, empty), sigmas, cfg=cfg)
                self._negatives[name] = path[0], trained
            start, trained = self._negatives[name]
            found[name] = along(self._network, start, after, trained, sigmas=sigmas, cfg=cfg)
        return found

    def _masked(self, pair: tuple[str, str], seed: int) -> dict[str, torch.Tensor]:
        away, _ = pair
        mask = word_mask(self._edited, self._latent, self._caption, away)
        positive = self._edited.encode(self._caption.replace(*pair))
        return {
            name: self._masked_image(
                positive, mask if cut is None else (mask >= cut).float(), seed, denoise
            )
            for name, (denoise, cut) in MASKED.items()
        }

    @torch.inference_mode()
    def _masked_image(
        self, positive: list, mask: torch.Tensor, seed: int, denoise: float
    ) -> torch.Tensor:
        import comfy.sample

        samples = comfy.sample.sample(
            self._edited.model,
            host.pack("nodes.host.evaluate").noise_for(self._latent, seed),
            self._steps,
            CFG,
            "euler",
            "normal",
            positive,
            self._edited.encode(""),
            self._latent,
            denoise=denoise,
            noise_mask=mask,
            disable_pbar=True,
        )
        return self._edited._vae.decode(samples)

    def _context(self, text: str) -> torch.Tensor:
        return self._edited.encode(text)[0][0].clone()

    def _decoded(self, latent: torch.Tensor) -> torch.Tensor:
        with torch.inference_mode():
            return self._edited._vae.decode(self._format.process_out(latent))


def row(edited, image: torch.Tensor, number: int) -> dict:
    """Of one face, for each attribute and method: reached, the fraction of others kept, and pixels
    changed; beside Edit by Words.
    """
    traits = edited.names(image)[0]
    latent = edited.latents(image)
    plain = words.caption(traits)
    seed = words.SEED + number
    rivals = Rivals(edited, latent, plain, words.STEPS)
    starts = {
        denoise: edited.own_noise(
            edited.encode(plain), latent, seed=seed, denoise=denoise, corrections=1
        )
        for denoise, _ in OURS.values()
    }
    found: dict[str, list[float]] = {}
    for attribute, value, _ in words.TARGETS:
        pair = words.words(traits, attribute, value)
        if pair is None:
            continue
        made = rivals.images(pair, seed)
        for name, (denoise, strength) in OURS.items():
            model = edited.edit(f"{pair[0]} -> {pair[1]}: {strength}", plain, 0.0)
            made[name] = edited.images(
                model, edited.encode(plain), starts[denoise], [seed], cfg=CFG, denoise=denoise
            )
        for name, images in made.items():
            found[f"{attribute}/{name}"] = words.read_images(
                edited, images, image, [traits], {attribute: value}
            )
    return found


def measure(quick: bool) -> dict[str, dict]:
    """Means over faces of each method, and ours less each rival."""
    host.prepare()
    assets = host.pack("nodes.demo.assets")
    edited = words.Edited(assets.worlds()[0])
    count = QUICK_FACES if quick else words.FACES
    settings = [FLOW_EDITS, NULL_PROMPTS, MASKED, OURS, ROUNDS, RATE, words.STEPS]
    kept = results.Rows("noise_edits" + "_quick" * quick, {"settings": settings})
    images = assets.load_images(assets.worlds()[0], 0, count, "face")[0]
    done, numbers = [], {}
    for number in range(count):
        read = functools.partial(row, edited, images[number : number + 1], number)
        done.append(kept.row(f"face {number}", read))
        print(f"face {number}", flush=True)
    every = [attribute for attribute, *_ in words.TARGETS]
    methods = (*FLOW_EDITS, *NULL_PROMPTS, *MASKED)
    kept.finished()
    for method in (*OURS, *methods):
        words.tabled(f"existing: {method}", done, every, method, unit="faces", numbers=numbers)
    for method in methods:
        name = f"existing: {DEFAULT} minus {method}"
        words.paired(name, done, every, (DEFAULT, method), unit="faces", numbers=numbers)
    return numbers
