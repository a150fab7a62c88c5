"""The linear layers of public models, from the sizes in their `config.json`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Layer:
    """A linear: its weight is [n, k], or [k, n] if `layout` is `nn`. `bias`: it adds a 1-D bias. `role`: what follows
    it decides its epilogue: one of `projection`, `residual` (its output is added to a residual), `gate`, `activation`
    and `head` (the lm_head)."""

    n: int
    k: int
    bias: bool = False
    role: str = field(default="projection", compare=False)
    layout: str = "nt"


@dataclass(frozen=True)
class Decoder:
    """A decoder with grouped attention. `heads`, `kv_heads`: of `head` elements each. `bias`: `qkv` or empty. `shards`:
    the tensor-parallel sizes that it commonly runs with. `gated`: its MLP has a gate."""

    hidden: int
    heads: int
    kv_heads: int
    head: int
    ffn: int
    vocab: int = 0
    bias: str = ""
    shards: tuple[int, ...] = (1,)
    gated: bool = True

    def layers(self) -> Iterator[Layer]:
        """The layers of all shards, with separate and with fused projections."""
        qkv = self.bias == "qkv"
        for shard in self.shards:
            query, value = self.heads * self.head // shard, max(self.kv_heads // shard, 1) * self.head
            ffn = self.ffn // shard
            yield Layer(query + 2 * value, self.hidden, qkv)
            yield Layer(self.hidden, query, role="residual")
            if self.gated:
                yield Layer(2 * ffn, self.hidden)
            yield Layer(self.hidden, ffn, role="residual")
            yield Layer(ffn, self.hidden, role="gate" if self.gated else "activation")
            yield Layer(query, self.hidden, qkv)
            yield Layer(value, self.hidden, qkv)
            if self.vocab:
                yield Layer(self.vocab // shard, self.hidden, role="head")


@dataclass(frozen=True)
class Encoder:
    """An encoder, a vision or a diffusion transformer. `gated`: its MLP has a gate. `bias`: its layers add one.
    `attention`: the elements of all its heads, `hidden` unless stated."""

    hidden: int
    ffn: int
    bias: bool = True
    gated: bool = False
    attention: int = 0

    def layers(self) -> Iterator[Layer]:
        """Separate and fused projections, the output, and the MLP."""
        heads = self.attention or self.hidden
        yield Layer(heads, self.hidden, self.bias)
        yield Layer(3 * heads, self.hidden, self.bias)
        yield Layer(self.hidden, heads, self.bias, "residual")
        if self.gated:
            yield Layer(2 * self.ffn, self.hidden, self.bias)
        yield Layer(self.ffn, self.hidden, self.bias, "gate" if self.gated else "activation")
        yield Layer(self.hidden, self.ffn, self.bias, "residual")


@dataclass(frozen=True)
class Other:
    """A model whose layers follow no pattern: its list."""

    listed: tuple[Layer, ...] = field(default=())

    def layers(self) -> Iterator[Layer]:
        """The list."""
        yield from self.listed


@dataclass(frozen=True)
class Convolutions:
    """GPT-2: its linears are `Conv1D` modules, whose weights are [k, n]."""

    hidden: int

    def layers(self) -> Iterator[Layer]:
        """Fused projections, the output, and the MLP."""
        yield Layer(3 * self.hidden, self.hidden, True, layout="nn")
        yield Layer(self.hidden, self.hidden, True, "residual", "nn")
        yield Layer(4 * self.hidden, self.hidden, True, "activation", "nn")
        yield Layer(self.hidden, 4 * self.hidden, True, "residual", "nn")


Model = Decoder | Encoder | Convolutions | Other
WHOLE_TO_8 = (1, 2, 4, 8)

DECODERS: dict[str, Decoder] = {
    "Llama 3.1 8B": Decoder(4096, 32, 8, 128, 14336, 128256),
    "Llama 3 70B": Decoder(8192, 64, 8, 128, 28672, 128256, shards=WHOLE_TO_8),
    "Qwen 2.5 7B": Decoder(3584, 28, 4, 128, 18944, 152064, "qkv"),
    "Qwen 3 8B": Decoder(4096, 32, 8, 128, 12288, 151936),
    "Llama 3.2 1B": Decoder(2048, 32, 8, 64, 8192, 128256),
    "Llama 3.2 3B": Decoder(3072, 24, 8, 128, 8192, 128256),
    "Qwen 3 32B": Decoder(5120, 64, 8, 128, 25600, 151936),
    "Qwen 2.5 32B": Decoder(5120, 40, 8, 128, 27648, 152064, "qkv"),
    "Qwen 3 0.6B": Decoder(1024, 16, 8, 128, 3072, 151936),
    "Gemma 2 9B": Decoder(3584, 16, 8, 256, 14336, 256000),
    "Mistral Small 24B": Decoder(5120, 32, 8, 128, 32768, 131072),
    "Llama 4, dense layers": Decoder(5120, 40, 8, 128, 16384, 202048, shards=(1, 8)),
    "Llama 4, shared expert": Decoder(5120, 40, 8, 128, 8192),
    "Qwen 2.5 0.5B": Decoder(896, 14, 2, 64, 4864, 151936, "qkv"),
    "Qwen 2.5 1.5B": Decoder(1536, 12, 2, 128, 8960, 151936, "qkv"),
    "Qwen 2.5 3B": Decoder(2048, 16, 2, 128, 11008, 151936, "qkv"),
    "Qwen 2.5 14B": Decoder(5120, 40, 8, 128, 13824, 152064, "qkv"),
    "Qwen 2.5 72B": Decoder(8192, 64, 8, 128, 29568, 152064, "qkv"),
    "Qwen 3 1.7B": Decoder(2048, 16, 8, 128, 6144, 151936),
    "Qwen 3 4B": Decoder(2560, 32, 8, 128, 9728, 151936),
    "Qwen 3 14B": Decoder(5120, 40, 8, 128, 17408, 151936),
    "Gemma 2 2B": Decoder(2304, 8, 4, 256, 9216, 256000),
    "Gemma 2 27B": Decoder(4608, 32, 16, 128, 36864, 256000),
    "Gemma 3 1B": Decoder(1152, 4, 1, 256, 6912, 262144),
    "Gemma 3 4B": Decoder(2560, 8, 4, 256, 10240, 262208),
    "Gemma 3 12B": Decoder(3840, 16, 8, 256, 15360, 262208),
    "Gemma 3 27B": Decoder(5376, 32, 16, 128, 21504, 262208),
    "Phi-3 mini": Decoder(3072, 32, 32, 96, 8192, 32064),
    "Phi-4": Decoder(5120, 40, 10, 128, 17920, 100352),
    "Phi-4 mini": Decoder(3072, 24, 8, 128, 8192, 200064),
    "Mistral 7B v0.3": Decoder(4096, 32, 8, 128, 14336, 32768),
    "Mistral Nemo": Decoder(5120, 32, 8, 128, 14336, 131072),
}
OTHERS: dict[str, Other] = {
    "DeepSeek-V3, dense parts": Other((
        Layer(1536, 7168), Layer(576, 7168), Layer(2112, 7168), Layer(24576, 1536), Layer(3072, 1536),
        Layer(32768, 512), Layer(4096, 512), Layer(7168, 16384, role="residual"), Layer(7168, 2048, role="residual"),
        Layer(18432, 7168, role="gate"), Layer(36864, 7168), Layer(7168, 18432, role="residual"), Layer(4608, 7168),
        Layer(7168, 2304, role="residual"), Layer(2048, 7168, role="gate"), Layer(4096, 7168), Layer(256, 7168),
        Layer(129280, 7168, role="head"),
    )),
    "GPT-OSS, dense parts": Other((
        Layer(5120, 2880, True), Layer(4096, 2880, True), Layer(512, 2880, True), Layer(2880, 4096, True, "residual"),
        Layer(2560, 2880, True), Layer(2880, 2048, True, "residual"), Layer(128, 2880, True), Layer(32, 2880, True),
        Layer(201088, 2880, role="head"),
    )),
}  # fmt: skip
ENCODERS: dict[str, Encoder] = {
    "BERT base, XLM-R base": Encoder(768, 3072),
    "BERT large, XLM-R large": Encoder(1024, 4096),
    "ModernBERT base": Encoder(768, 1152, bias=False, gated=True),
    "ModernBERT large": Encoder(1024, 2624, bias=False, gated=True),
    "T5 base": Encoder(768, 3072, bias=False),
    "T5 v1.1 base": Encoder(768, 2048, bias=False, gated=True),
    "T5 v1.1 large": Encoder(1024, 2816, bias=False, gated=True),
    "T5 v1.1 XL": Encoder(2048, 5120, bias=False, gated=True),
    "T5 v1.1 XXL": Encoder(4096, 10240, bias=False, gated=True),
    "MiniLM L12": Encoder(384, 1536),
    "Whisper large": Encoder(1280, 5120),
}
VISION: dict[str, Encoder] = {
    "ViT-B, DINOv2 B": Encoder(768, 3072),
    "ViT-L, DINOv2 L": Encoder(1024, 4096),
    "ViT-H": Encoder(1280, 5120),
    "SigLIP So400m": Encoder(1152, 4304),
    "DINOv2 g": Encoder(1536, 4096, gated=True),
    "Qwen 2.5 VL, vision": Encoder(1280, 3420, gated=True),
}
DIFFUSION: dict[str, Model] = {
    "SD 3 medium": Encoder(1536, 6144),
    "SD 3.5 large": Encoder(2432, 9728),
    "Flux": Encoder(3072, 12288),
    "Flux, single blocks": Other((Layer(21504, 3072, True), Layer(3072, 15360, True, "residual"))),
    "SDXL": Other((
        Layer(1280, 1280, True, "residual"), Layer(10240, 1280, True), Layer(1280, 5120, True, "residual"),
        Layer(640, 640, True, "residual"), Layer(5120, 640, True), Layer(640, 2560, True, "residual"),
        Layer(1280, 2048), Layer(640, 2048),
    )),
}  # fmt: skip
CONVOLUTIONS: dict[str, Convolutions] = {"GPT-2": Convolutions(768), "GPT-2 medium": Convolutions(1024)}
TRAINED: dict[str, Model] = {
    "GPT-2": Convolutions(768),
    "BERT large": ENCODERS["BERT large, XLM-R large"],
    "Llama 3.2 1B": DECODERS["Llama 3.2 1B"],
    "Qwen 2.5 0.5B": DECODERS["Qwen 2.5 0.5B"],
    "Qwen 2.5 1.5B": DECODERS["Qwen 2.5 1.5B"],
    "Qwen 3 4B": DECODERS["Qwen 3 4B"],
    "Gemma 2 2B": DECODERS["Gemma 2 2B"],
    "Llama 3.2 3B": DECODERS["Llama 3.2 3B"],
    "Llama 3.1 8B": Decoder(4096, 32, 8, 128, 14336),
}
"""The models whose backward GEMMs the preset lists."""

UNSEEN: dict[str, Model] = {
    "OLMo 2 7B": Decoder(4096, 32, 32, 128, 11008, 100352),
    "OLMo 2 13B": Decoder(5120, 40, 40, 128, 13824, 100352),
    "SmolLM2 1.7B": Decoder(2048, 32, 32, 64, 8192, 49152),
    "SmolLM2 360M": Decoder(960, 15, 5, 64, 2560, 49152),
    "SmolLM3 3B": Decoder(2048, 16, 4, 128, 11008),
    "Granite 3 2B": Decoder(2048, 32, 8, 64, 8192),
    "Granite 3 8B": Decoder(4096, 32, 8, 128, 12800),
    "StarCoder2 3B": Decoder(3072, 24, 2, 128, 12288, gated=False),
    "StarCoder2 7B": Decoder(4608, 36, 4, 128, 18432, gated=False),
    "StarCoder2 15B": Decoder(6144, 48, 4, 128, 24576, gated=False),
    "Yi 1.5 34B": Decoder(7168, 56, 8, 128, 20480),
    "Yi 1.5 9B": Decoder(4096, 32, 4, 128, 11008),
    "GLM-4 9B": Decoder(4096, 32, 2, 128, 13696),
    "InternLM 2.5 20B": Decoder(6144, 48, 8, 128, 16384),
    "Command R7B": Decoder(4096, 32, 8, 128, 14336),
    "Command R": Decoder(8192, 64, 8, 128, 22528),
    "Command R+": Decoder(12288, 96, 8, 128, 33792),
    "StableLM 2 1.6B": Decoder(2048, 32, 32, 64, 5632),
    "StableLM 2 12B": Decoder(5120, 32, 8, 160, 13824),
    "MiniCPM 3 4B": Decoder(2560, 40, 40, 64, 6400),
    "EXAONE 3.5 2.4B": Decoder(2560, 32, 8, 80, 7168),
    "EXAONE 4 32B": Decoder(5120, 40, 8, 128, 27392),
    "Nemotron 51B": Decoder(8192, 64, 8, 128, 21504),
    "Minitron 4B": Decoder(3072, 24, 8, 128, 9216),
    "Falcon 3 7B": Decoder(3072, 12, 4, 256, 23040),
    "TinyLlama 1.1B": Decoder(2048, 32, 4, 64, 5632),
    "OpenELM 3B": Decoder(3072, 24, 6, 128, 8192),
    "Jamba mini": Decoder(4096, 32, 8, 128, 14336),
    "Pixtral vision": Encoder(1024, 4096, bias=False, gated=True),
    "DeBERTa v3 small": Encoder(768, 3072),
    "NomicBERT": Encoder(768, 3072, bias=False, gated=True),
    "EVA-02 L": Encoder(1024, 2730, gated=True),
    "InternViT 6B": Encoder(3200, 12800),
    "ViT-g": Encoder(1408, 6144),
    "ViT-G": Encoder(1664, 8192),
    "PixArt": Encoder(1152, 4608),
    "CogVideoX 2B": Encoder(1920, 7680),
    "AuraFlow": Encoder(3072, 8192, bias=False, gated=True),
    "Lumina 2": Encoder(2304, 9216, bias=False, gated=True),
    "Wan 2.1 1.3B": Encoder(1536, 8960),
    "Wan 2.1 14B": Encoder(5120, 13824),
    "Whisper medium": Encoder(1024, 4096),
    "Whisper small": Encoder(768, 3072),
    "Kimi, MLA": Other((Layer(12288, 1536), Layer(7168, 8192, role="residual"), Layer(16384, 512))),
    "DeepSeek-V2 Lite": Other((
        Layer(3072, 2048), Layer(576, 2048), Layer(4096, 512), Layer(2048, 2048, role="residual"),
        Layer(10944, 2048, role="gate"), Layer(2048, 10944, role="residual"), Layer(2816, 2048, role="gate"),
    )),
}  # fmt: skip
"""Models that the preset does not list, for samples that no table holds."""
HEAD_ROWS = 64
"""The most rows of an lm_head, which runs on the last token of each sequence."""


def layers_of(listed: Iterable[Model]) -> list[Layer]:
    """The distinct layers of some models; of those that differ only in their role, the first."""
    return list(dict.fromkeys(layer for model in listed for layer in model.layers()))
