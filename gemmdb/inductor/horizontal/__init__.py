"""Horizontal fusion: products of one activation, such as those for queries, keys and values, become one kernel.

Each of them alone fills a GPU for a moment only, and reads the activation again. The weights stay where they are. No
table knows such a kernel: it is served where a trial in the program says that it is faster than the kernels one by one.
"""
