"""The measurements on H200s, and their figures. Run from the repository root."""

from benchmarks.command import Tool

TOOLS = (
    Tool("build", "Build the rows of the shipped table, from where the last build stopped.", gpu=True),
    Tool("report", "Print the figures of the shipped table or of a folder of results."),
    Tool("outdated", "List the problems whose rows precede today's kernels."),
    Tool("gained", "Print what the GEMMs of an archive gained by its rows."),
    Tool("peers", "Time a sample of the table against default mode and max-autotune.", gpu=True),
    Tool("peers-report", "Print the figures of files that `peers` wrote."),
    Tool("figures", "Run all measurements of a finished table, side by side on the GPUs of a host.", gpu=True),
    Tool("prepare", "Compile with nvcc what `figures` needs."),
    Tool("repeat", "Tune the same problems twice and compare the two tables.", gpu=True),
    Tool("exhaustive", "Compare the picks of an effort with those of a search of the whole space.", gpu=True),
    Tool("scaling", "Compare the throughput of a build on one GPU and on several.", gpu=True),
    Tool("cluster", "Compare the time of a build through Ray and of a plain one.", gpu=True),
    Tool("stores", "Time epilogues that store in another order, fused and behind ATen.", gpu=True),
    Tool("references", "Time default mode's code beside the kernels that stand in for it.", gpu=True),
    Tool("biases", "Print how much of its gain over ATen a config loses by a bias."),
    Tool("simulate", "Simulate a build on many GPUs, with compilers and GPUs that sleep."),
)
