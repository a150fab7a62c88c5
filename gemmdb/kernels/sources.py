"""Which kernel source a row was measured with, and whether it is still current. This covers our sources and the
templates that come with torch."""

from __future__ import annotations

from gemmdb.kernels.config import Config


def digest(config: Config) -> str:
    """16 hexadecimal digits of the source that `config` is rendered from, empty for kernels without a template, and for
    torch's templates if torch is not installed."""
    found = config.spec.digest
    return found() if found is not None else ""


def is_current(config: Config, source: str) -> bool:
    """Whether a row whose toolchain says `source` was measured with the kernel as it is rendered now. True for rows
    that name no source and for kernels without a template."""
    kernel = config.spec
    if not source or kernel.digest is None:
        return True
    return _latest(source, config) == _latest(kernel.digest(), config)


def _latest(source: str, config: Config) -> str:
    while source in config.spec.equivalent:
        source = config.spec.equivalent[source]
    return source
