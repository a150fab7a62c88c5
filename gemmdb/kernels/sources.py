"""Which kernel sources rows were measured with, and whether those are still the present ones: ours, and the templates
that come with torch."""

from __future__ import annotations

from gemmdb.kernels.config import Config


def digest(config: Config) -> str:
    """16 hexadecimal digits of the source that `config` is rendered from, empty for kernels without a template, and
    for those of torch where it is not installed."""
    found = config.spec.digest
    return found() if found is not None else ""


def is_current(config: Config, source: str) -> bool:
    """Whether a row whose toolchain says `source` was measured with the kernel as it is rendered now. Rows that name no
    source, and kernels without a template, always were."""
    kernel = config.spec
    if not source or kernel.digest is None:
        return True
    return _latest(source, config) == _latest(kernel.digest(), config)


def _latest(source: str, config: Config) -> str:
    while source in config.spec.equivalent:
        source = config.spec.equivalent[source]
    return source
