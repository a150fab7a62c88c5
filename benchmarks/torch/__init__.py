"""torch.compile with gemmdb: compile time, speed of whole models, live tuning, lookups. Run from the repository root.

Within this package `import torch` is PyTorch, because Python resolves it from the repository root.
"""

from benchmarks.command import Tool

TOOLS = (
    Tool("models", "Time decode and prefill of a Llama-3-8B-shaped model in three modes.", gpu=True),
    Tool("compile", "Time the compilation of that model in three modes, in fresh processes.", gpu=True),
    Tool("blocks", "Time blocks of transformers with and without horizontal fusion.", gpu=True),
    Tool("symbolic", "Compare one compile for a range of rows with a compile for each size.", gpu=True),
    Tool("invariance", "Compare the bits of a row between numbers of rows, for ATen and gemmdb.", gpu=True),
    Tool("lowering", "Time single GEMMs as Inductor compiles them with a table.", gpu=True),
    Tool("prebuilt", "Time compiles of GEMMs whose CUTLASS kernel is compiled in advance.", gpu=True),
    Tool("host", "Time what the host takes to launch each kind of GEMM, beside ATen.", gpu=True),
    Tool("search", "Time the search of cuBLASLt's algorithms for single GEMMs, by stage.", gpu=True),
    Tool("activations", "Time linear layers whose activation cuBLASLt computes within its call.", gpu=True),
    Tool(
        "vllm-files",
        "Time vLLM's experts with the configs of `gemmdb vllm`, of its own file, and its default.",
        gpu=True,
    ),
    Tool("vllm-layers", "Time layers of experts with gemmdb, in default mode, and by vLLM's kernel.", gpu=True),
    Tool("cubins", "Time what shipped Triton kernels would save of a compile of that model.", gpu=True),
    Tool("live", "Measure what live tuning costs and finds, on a GPU or a CPU."),
    Tool("frozen", "Prove frozen mode: cold starts on all GPUs with the same code, no timing, and its gain."),
    Tool("lookup", "Time lookups in a table of a million problems."),
    Tool("near", "Time rung near for held-out problems, from a table and its packed form."),
    Tool("matrix", "Run the integration's CPU tests on every supported torch."),
)
