"""The formats of other programs, by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from gemmdb.exchange.foreign import autotune_cache, mm_log, tunableop, vllm
from gemmdb.exchange.foreign.given import Given
from gemmdb.exchange.importing import Content
from gemmdb.exchange.report import Tally

FOREIGN: Mapping[str, Callable[[Path, Tally, Given], Content]] = {
    module.KIND: module.read for module in (mm_log, autotune_cache, tunableop, vllm)
}
"""What reads each format."""
