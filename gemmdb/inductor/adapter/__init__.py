"""The one place that touches private parts of Inductor. Tried with torch 2.13; written for 2.11 to 2.15.

`slots`: custom pass slots. `hooks`: compile_fx, compiled artefacts, live timings. `state`: config, lowerings, IR.
Import it only when Inductor is loaded already: it loads the lowering tables.
"""
