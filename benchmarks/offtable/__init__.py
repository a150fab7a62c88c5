"""How good are the answers for problems that the table does not hold? All of it runs on a CPU, and needs
gemmdb[fit]. Run from the repository root."""

from benchmarks.command import Tool

TOOLS = (
    Tool("near", "Score rung `near` and peers with tables on held-out problems."),
    Tool("report", "Print the figures of `near` as Markdown."),
    Tool("model", "Score the cost model by itself on held-out problems."),
    Tool("combined", "Score near and model together, live tuning, and peers without tables."),
    Tool("against-aten", "Count the held-out answers that are slower than ATen, and what all of them gain."),
    Tool("fits", "Compare what two fits answer to the held-out problems of `against-aten`."),
    Tool("calibrate", "Fit the bounds of the lookup to the answers of `against-aten`."),
    Tool("fresh", "Time answers to problems that no preset lists, beside ATen.", gpu=True),
    Tool("fresh-report", "Print the figures of `fresh`."),
    Tool("fresh-again", "Score what the tables answer now by the times of `fresh`."),
    Tool("worth", "Compare what live tuning expects to save with what was measured."),
    Tool("fp8", "Score rung `near` on held-out fp8 problems."),
    Tool("sku", "Score rung `sku` by what was measured on an H100."),
    Tool("light", "Score what rows without an epilogue say of the light one, on the H200's table."),
    Tool("autoheuristic", "Compare the modelled A100 picks with PyTorch's own heuristics; needs torch."),
)
