"""The tools that measure gemmdb. `python -m benchmarks` lists them; run all of them from the repository root.

`results/` holds their raw results. gemmdb imports nothing from here, and nothing of it is installed.
"""
