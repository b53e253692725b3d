"""The networks that people run today, as workflows load and sample them: the files, shift, sampler
and steps of ComfyUI's own templates for each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from .authoring import Output, Workflow

Shifted = Callable[[Workflow, Output], Output]


@dataclass(frozen=True, kw_only=True)
class Network:
    """What differs from one network to another in a workflow.

    ``cfg`` 1: a distilled model, which has no negative prompt. ``side``: width and height in
    pixels that the model was trained at. ``scheduler`` "flux2": ComfyUI's Flux2Scheduler, which
    wants the size, behind a guider; any other is one of KSampler's.
    """

    title: str
    model_file: str
    text_encoder_file: str
    text_encoder_type: str
    vae_file: str
    side: int
    steps: int
    cfg: float
    sampler: str
    scheduler: str = "simple"
    latent_node: str = "EmptySD3LatentImage"
    #: The node that moves the noise schedule, and its value.
    shift_node: str = ""
    shift: float = 0.0
    latent_size: dict[str, int] = field(default_factory=dict)

    def load(self, w: Workflow) -> tuple[Output, Output, Output]:
        """MODEL, CLIP and VAE from the three files, the schedule moved where it has to be, in a
        subgraph.
        """

        def inside(w: Workflow) -> dict[str, Output]:
            model = w.add("UNETLoader", unet_name=self.model_file, weight_dtype="default")
            clip = w.add(
                "CLIPLoader", clip_name=self.text_encoder_file, type=self.text_encoder_type
            )
            vae = w.add("VAELoader", vae_name=self.vae_file)
            if self.shift_node:
                model = w.add(self.shift_node, model=model, shift=self.shift)
            return {"model": model, "clip": clip, "vae": vae}

        return w.subgraph(f"Load {self.title}", inside)

    def encode(self, w: Workflow, clip: Output, text: Output | str) -> tuple[Output, Output]:
        """The prompt and what stands for a negative one, in the subgraph "Prompt"."""

        def inside(w: Workflow, clip: Output, prompt: Output) -> dict[str, Output]:
            positive = w.add("CLIPTextEncode", clip=clip, text=prompt, node_title="Prompt")
            if self.cfg == 1:
                negative = w.add("ConditioningZeroOut", conditioning=positive)
            else:
                negative = w.add("CLIPTextEncode", clip=clip, text="", node_title="Negative prompt")
            return {"positive": positive, "negative": negative}

        return w.subgraph("Prompt", inside, clip=clip, prompt=text)

    def latent(self, w: Workflow, *, batch_size: int = 1, side: int | None = None) -> Output:
        """An empty latent of the trained size, or of another."""
        size = {"width": side or self.side, "height": side or self.side} | self.latent_size
        return w.add(self.latent_node, batch_size=batch_size, **size)

    def sample(
        self,
        w: Workflow,
        *,
        model: Output,
        positive: Output,
        negative: Output,
        latent: Output,
        seed: Output | int,
        denoise: float = 1.0,
        side: int | None = None,
    ) -> Output:
        """The sampled LATENT."""
        if self.scheduler != "flux2":
            return w.add(
                "KSampler",
                model=model,
                positive=positive,
                negative=negative,
                latent_image=latent,
                seed=seed,
                steps=self.steps,
                cfg=self.cfg,
                sampler_name=self.sampler,
                scheduler=self.scheduler,
                denoise=denoise,
            )
        sigmas = self._sigmas(w, denoise, side or self.side)
        samples, _ = w.add(
            "SamplerCustomAdvanced",
            noise=w.add("RandomNoise", noise_seed=seed),
            guider=w.add(
                "CFGGuider", model=model, positive=positive, negative=negative, cfg=self.cfg
            ),
            sampler=w.add("KSamplerSelect", sampler_name=self.sampler),
            sigmas=sigmas,
            latent_image=latent,
        )
        return samples

    def flow_edit(
        self,
        w: Workflow,
        *,
        model: Output,
        source: Output,
        target: Output,
        negative: Output,
        latent: Output,
        seed: Output | int,
        denoise: float,
    ) -> Output:
        """The LATENT edited from one prompt to another."""
        levels = {"steps": self.steps, "scheduler": self.scheduler, "denoise": denoise}
        if self.scheduler == "flux2":
            levels = {"sigmas": self._sigmas(w, denoise, self.side)}
        return w.add(
            "GBX_FlowEdit",
            model=model,
            source=source,
            target=target,
            negative=negative,
            latent=latent,
            seed=seed,
            target_cfg=self.cfg,
            source_cfg=max(1.0, self.cfg / 2),
            **levels,
        )

    def _sigmas(self, w: Workflow, denoise: float, side: int) -> Output:
        """As KSampler does: the requested number of steps, on the lower part of a longer
        schedule.
        """
        steps = round(self.steps / denoise)
        sigmas = w.add("Flux2Scheduler", steps=steps, width=side, height=side)
        if denoise < 1:
            _, sigmas = w.add("SplitSigmasDenoise", sigmas=sigmas, denoise=denoise)
        return sigmas


Z_IMAGE = Network(
    title="Z-Image",
    model_file="z_image_turbo_bf16.safetensors",
    text_encoder_file="qwen_3_4b.safetensors",
    text_encoder_type="lumina2",
    vae_file="ae.safetensors",
    side=1024,
    steps=8,
    cfg=1.0,
    sampler="res_multistep",
    shift_node="ModelSamplingAuraFlow",
    shift=3.0,
)
QWEN_IMAGE = Network(
    title="Qwen-Image",
    model_file="qwen_image_2512_fp8_e4m3fn.safetensors",
    text_encoder_file="qwen_2.5_vl_7b_fp8_scaled.safetensors",
    text_encoder_type="qwen_image",
    vae_file="qwen_image_vae.safetensors",
    side=1328,
    steps=20,
    cfg=4.0,
    sampler="euler",
    shift_node="ModelSamplingAuraFlow",
    shift=3.1,
)
FLUX2 = Network(
    title="FLUX.2 klein",
    model_file="flux-2-klein-4b.safetensors",
    text_encoder_file="qwen_3_4b.safetensors",
    text_encoder_type="flux2",
    vae_file="flux2-vae.safetensors",
    side=1024,
    steps=4,
    cfg=1.0,
    sampler="euler",
    scheduler="flux2",
    latent_node="EmptyFlux2LatentImage",
)
KREA2 = Network(
    title="Krea 2",
    model_file="krea2_turbo_fp8_scaled.safetensors",
    text_encoder_file="qwen3vl_4b_fp8_scaled.safetensors",
    text_encoder_type="krea2",
    vae_file="qwen_image_vae.safetensors",
    side=1024,
    steps=8,
    cfg=1.0,
    sampler="euler",
)
WAN = Network(
    title="Wan",
    model_file="wan2.1_t2v_1.3B_fp16.safetensors",
    text_encoder_file="umt5_xxl_fp8_e4m3fn_scaled.safetensors",
    text_encoder_type="wan",
    vae_file="wan_2.1_vae.safetensors",
    side=480,
    steps=30,
    cfg=6.0,
    sampler="uni_pc",
    latent_node="EmptyHunyuanLatentVideo",
    shift_node="ModelSamplingSD3",
    shift=8.0,
    latent_size={"width": 832, "length": 33},
)
