"""The cost model: expected times of configs, from public figures of the GPU and fitted coefficients."""
