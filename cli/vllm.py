"""`gemmdb vllm`: tunes vLLM's own Triton kernels and writes its JSON files."""

from __future__ import annotations

import shlex
from dataclasses import dataclass
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Option

from gemmdb.cli.build import terminable
from gemmdb.cli.options import JsonFlag, require, takes
from gemmdb.cli.output import count, microseconds, note, say_facts, say_json, say_table
from gemmdb.cli.progress import Pulse, left
from gemmdb.errors import InputError

if TYPE_CHECKING:
    from gemmdb.generators.vllm.layers import Layer
    from gemmdb.generators.vllm.rows import Row
    from gemmdb.generators.vllm.tune import Tuned

BUDGET = "5m"
TokensOption = Annotated[
    str | None,
    Option(metavar="M,M,...", help="The numbers of tokens to measure [default: vLLM's own 18, from 1 to 4096]."),
]
OutOption = Annotated[Path, Option("--out", "-o", metavar="FOLDER", help="Where to write the file and its rows.")]
BudgetOption = Annotated[
    str, Option(metavar="TIME", help="How long it may take: 90s, 5m. Sizes that are left are measured the next time.")
]


def vllm(context: typer.Context) -> None:
    """Tune vLLM's own Triton kernels on this GPU and write the JSON files that vLLM loads.

    vLLM runs the configs in these files with its own kernels. So these are what is timed, by vLLM's own functions: run
    it in your server's environment. Your server then needs nothing of gemmdb.

    For each number of tokens, it tries tiles that suit the sizes, then small changes of the best ones. Each config is
    checked against an exact result and timed in turn with the one that vLLM has now, with cold caches. That one stays
    unless another is faster by more than 2%. All times, failures and versions go into a .rows.jsonl file beside the
    JSON file.

    You can stop at any time and continue with the same command. Numbers of tokens that were not measured keep vLLM's
    present config.

    \b
    Examples:
      gemmdb vllm experts --experts 8 --top-k 2 --hidden 4096 --intermediate 7168 -o configs
      gemmdb vllm linear --n 7168 --k 2048 -o configs
      VLLM_TUNED_CONFIG_FOLDER=configs vllm serve MODEL

    \b
    Exit codes: 0 done, or the budget is over, 1 no size could be measured, 2 bad usage or bad input, no GPU or no
    vLLM, 130 interrupted.
    """
    if context.invoked_subcommand is None:
        print(context.get_help())


@dataclass(frozen=True)
class ExpertsOptions:
    """The flags of `gemmdb vllm experts`."""

    experts: int = Option(help="Number of experts on one GPU: num_experts, divided by the expert parallel size.")
    top_k: int = Option(help="Number of experts that each token goes to: num_experts_per_tok.")
    hidden: int = Option(help="Size of a token: hidden_size.")
    intermediate: int = Option(
        help="Columns of an expert's gate on one GPU: moe_intermediate_size, else intermediate_size, divided by the"
        " tensor parallel size."
    )
    fp8: bool = Option(False, "--fp8", help="fp8 weights with scales of 128 x 128 [default: bf16].")
    tokens: TokensOption = None
    budget: BudgetOption = BUDGET
    out: OutOption = Path()
    as_json: JsonFlag = False


@takes(ExpertsOptions)
def experts(options: ExpertsOptions) -> None:
    """Tune a layer of experts (fused MoE), and write E=...,N=...,device_name=....json.

    The sizes are in the model's config.json. vLLM finds the file in the folder VLLM_TUNED_CONFIG_FOLDER. Its name does
    not contain the hidden size or the experts per token, so models that differ only in these need folders of their own.

    \b
    Examples:
      gemmdb vllm experts --experts 8 --top-k 2 --hidden 4096 --intermediate 7168 -o configs
      gemmdb vllm experts --experts 256 --top-k 8 --hidden 7168 --intermediate 256 --fp8 --budget 2m -o configs

    \b
    Exit codes: 0 done, or the budget is over, 1 no size could be measured, 2 bad usage or bad input, no GPU or no
    vLLM, 130 interrupted.
    """
    from gemmdb.generators.vllm.layers import Experts

    layer = Experts(options.experts, options.top_k, options.hidden, options.intermediate, options.fp8)
    _tune(layer, _Request(options.tokens, options.budget, options.out, options.as_json))


def linear(
    n: int = Option(help="Columns of the output on one GPU."),
    k: int = Option(help="The inner size on one GPU, a multiple of 128."),
    tokens: TokensOption = None,
    budget: BudgetOption = BUDGET,
    out: OutOption = Path(),
    as_json: JsonFlag = False,
) -> None:
    """Tune an fp8 linear with scales of 128 x 128, and write N=...,K=...,block_shape=[128,128].json.

    vLLM looks for this file in its own package only: copy it into vllm/model_executor/layers/quantization/utils/configs
    there. It runs this kernel where neither DeepGEMM nor CUTLASS serves the layer.

    \b
    Examples:
      gemmdb vllm linear --n 7168 --k 2048 -o configs

    \b
    Exit codes: 0 done, or the budget is over, 1 no size could be measured, 2 bad usage or bad input, no GPU or no
    vLLM, 130 interrupted.
    """
    from gemmdb.generators.vllm.layers import Linear

    _tune(Linear(n, k), _Request(tokens, budget, out, as_json))


@dataclass(frozen=True)
class _Request:
    """What both commands take."""

    tokens: str | None
    budget: str
    out: Path
    as_json: bool


def _tune(layer: Layer, request: _Request) -> None:
    from gemmdb.tune.plan import seconds

    sizes, budget_s, begun = _sizes(request.tokens), seconds(request.budget), monotonic()
    if request.out.exists() and not request.out.is_dir():
        raise InputError(f"--out {request.out}: not a folder")
    require("vllm", "this command", "vllm, or run it in your server's environment")
    require("torch", "this command")
    from gemmdb.generators.vllm.tune import tune

    note(f"{count(len(sizes), 'size')}, {left(budget_s).replace('about', 'at most').removesuffix(' left')}")
    with terminable(), Pulse() as pulse:
        # Importing torch may have taken seconds.
        left_s = budget_s - (monotonic() - begun)
        found = tune(layer, sizes, request.out, left_s, lambda words, left_s: pulse.begin(words, True, left_s))
    if request.as_json:
        say_json("vllm", _document(found))
    elif found.path:
        _say(found, request.out)
    _note_left(found)
    if found.interrupted or found.path is None:
        raise typer.Exit(130 if found.interrupted else 1)


def _note_left(found: Tuned) -> None:
    for reason in dict.fromkeys(found.left.values()):
        sizes = [str(m) for m, one in found.left.items() if one == reason]
        note(f"{reason}: M={','.join(sizes)} not measured; run the same command to continue")


def _say(found: Tuned, folder: Path) -> None:
    say_table(("M", "config", "now", "new", "gain"), [_cells(row) for row in found.found.values()], ("M", "now", "new"))
    say_facts([
        ("file", str(found.path)),
        ("rows", str(found.rows)),
        ("next", f"VLLM_TUNED_CONFIG_FOLDER={shlex.quote(str(folder.absolute()))} vllm serve MODEL"),
    ])  # fmt: skip


def _cells(row: Row) -> list[str]:
    tile, times = row.tile, row.times
    config = (
        f"{tile.block_m}x{tile.block_n}x{tile.block_k}, group {tile.group_m}, {tile.warps} warps, {tile.stages} stages"
    )
    now, new = (microseconds(times.aten_us), microseconds(times.median_us)) if times else ("", "")
    return [str(row.m), config, now, new, "as now" if row.current or not times else f"{1 / times.ratio:.2f}x"]


def _document(found: Tuned) -> dict[str, Any]:
    """Return everything as JSON."""
    sizes = [
        {
            "m": m, "config": row.tile.values, "us": row.times.median_us, "low_us": row.times.low_us,
            "high_us": row.times.high_us, "present_us": row.times.aten_us, "changed": not row.current,
        }
        for m, row in found.found.items() if row.times
    ]  # fmt: skip
    left_out = [{"m": m, "reason": reason} for m, reason in found.left.items()]
    return {
        "path": found.path and str(found.path), "rows": str(found.rows), "sizes": sizes, "left": left_out,
        "seconds": found.seconds, "interrupted": found.interrupted,
    }  # fmt: skip


def _sizes(text: str | None) -> tuple[int, ...]:
    """Return the numbers of tokens in a list, ascending. Raises InputError."""
    from gemmdb.generators.vllm.layers import MAX_SIZE, USUAL

    if text is None:
        return USUAL
    words = [word.strip() for word in text.split(",")]
    if not all(word.isascii() and word.isdigit() and 0 < int(word[:9]) <= MAX_SIZE for word in words):
        raise InputError(f"--tokens {text[:60]!r}: comma-separated numbers from 1 to {MAX_SIZE:,}")
    return tuple(sorted({int(word) for word in words}))
