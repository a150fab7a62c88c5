"""`gemmdb vllm`: tunes vLLM's own Triton kernels and writes its JSON files."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from gemmdb.cli.options import JsonFlag, require, takes
from gemmdb.cli.output import count, note, say, say_json
from gemmdb.errors import InputError

if TYPE_CHECKING:
    from gemmdb.generators.vllm.layers import Layer

TokensOption = Annotated[
    str | None,
    Option(metavar="M,M,...", help="The numbers of tokens to measure [default: vLLM's own 18, from 1 to 4096]."),
]
OutOption = Annotated[Path, Option("--out", "-o", metavar="FOLDER", help="Where to write the file and its rows.")]
MinutesOption = Annotated[
    float | None, Option(help="Start no new measurement after this many minutes. Run the same command to continue.")
]


def vllm(context: typer.Context) -> None:
    """Tune vLLM's own Triton kernels on this GPU and write the JSON files that vLLM loads.

    vLLM runs the configs in these files with its own kernels, so these are timed, by vLLM's functions: it must be
    installed in this environment. Each config is checked against an exact result and timed in turn with vLLM's present
    one, with cold caches. Where none is faster by more than 2%, the present one is written. All times, failures and
    versions go into a file of rows beside it, so you can stop at any time and continue with the same command.

    \b
    Examples:
      gemmdb vllm experts --experts 8 --top-k 2 --hidden 4096 --intermediate 7168 -o configs
      gemmdb vllm linear --n 7168 --k 2048 -o configs
      VLLM_TUNED_CONFIG_FOLDER=configs vllm serve MODEL

    \b
    Exit codes: 0 done, 1 out of time before anything was complete, 2 bad usage or bad input.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@dataclass(frozen=True)
class ExpertsOptions:
    """The flags of `gemmdb vllm experts`."""

    experts: int = Option(help="Number of experts on one GPU.")
    top_k: int = Option(help="Number of experts that each token goes to.")
    hidden: int = Option(help="Size of a token.")
    intermediate: int = Option(help="Columns of the gate on one GPU: the model's, divided by the tensor parallel size.")
    fp8: bool = Option(False, "--fp8", help="fp8 weights with scales of 128 x 128 [default: bf16].")
    tokens: TokensOption = None
    minutes: MinutesOption = None
    out: OutOption = Path()


@takes(ExpertsOptions)
def experts(options: ExpertsOptions, json: JsonFlag = False) -> None:
    """Tune a layer of experts (fused MoE), and write E=...,N=...,device_name=....json.

    vLLM finds it in the folder VLLM_TUNED_CONFIG_FOLDER. The name does not contain the hidden size or the number of
    experts per token, so models that differ only in these need folders of their own.

    \b
    Examples:
      gemmdb vllm experts --experts 8 --top-k 2 --hidden 4096 --intermediate 7168 -o configs
      gemmdb vllm experts --experts 256 --top-k 8 --hidden 7168 --intermediate 256 --fp8 --minutes 5 -o configs

    \b
    Exit codes: 0 done, 1 out of time before anything was complete, 2 bad usage or bad input.
    """
    from gemmdb.generators.vllm.layers import Experts

    layer = Experts(options.experts, options.top_k, options.hidden, options.intermediate, options.fp8)
    _tune(layer, options.tokens, options.minutes, options.out, json)


def linear(
    n: int = Option(help="Columns of the weight on one GPU."),
    k: int = Option(help="Rows of the weight on one GPU."),
    tokens: TokensOption = None,
    minutes: MinutesOption = None,
    out: OutOption = Path(),
    json: JsonFlag = False,
) -> None:  # fmt: skip
    """Tune an fp8 linear with scales of 128 x 128, and write N=...,K=...,block_shape=[128,128].json.

    vLLM looks for it in its own package only: copy it into the folder quantization/utils/configs of model_executor's
    layers.

    \b
    Examples:
      gemmdb vllm linear --n 7168 --k 2048 -o configs

    \b
    Exit codes: 0 done, 1 out of time before anything was complete, 2 bad usage or bad input.
    """
    from gemmdb.generators.vllm.layers import Linear

    _tune(Linear(n, k), tokens, minutes, out, json)


def _tune(layer: Layer, tokens: str | None, minutes: float | None, out: Path, json: bool) -> None:
    sizes = _sizes(tokens)
    if minutes is not None and not minutes > 0:
        raise InputError(f"--minutes {minutes:g}: must be more than 0")
    require("torch", "tuning for vLLM")
    from gemmdb.generators.vllm.tune import tune

    found = tune(layer, sizes, out, minutes, note)
    if json:
        say_json("vllm", {**asdict(found), "path": found.path and str(found.path), "rows": str(found.rows)})
    elif found.path:
        gains = ", ".join(f"M={m} {gain:.2f}x" for m, gain in sorted(found.faster.items()))
        say(f"{found.path}: {count(len(sizes) - len(found.left), 'config')}; faster than now: {gains or 'none'}")
    if found.left:
        note(f"not complete: M={','.join(map(str, found.left))}; run the same command to continue")
    if found.path is None:
        raise typer.Exit(1)


def _sizes(text: str | None) -> tuple[int, ...]:
    """Return the numbers of tokens in a list, ascending. Raises InputError."""
    from gemmdb.generators.vllm.layers import MAX_SIZE, USUAL

    if text is None:
        return USUAL
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < int(word[:9]) <= MAX_SIZE for word in words):
        raise InputError(f"--tokens {text[:60]!r}: comma-separated numbers from 1 to {MAX_SIZE:,}")
    return tuple(sorted({int(word) for word in words}))
