"""Artifacts whose build does what their key says, for the nodes of a test's cluster."""

import dataclasses
import os
from pathlib import Path

from gemmdb.generators.measure.cuda.artifacts import Built


@dataclasses.dataclass(frozen=True)
class Artifact:
    key: str
    work: str = ""
    optional: bool = False

    def build(self, capability: int) -> Built:
        if self.key == "die":
            os._exit(3)
        if self.key == "raise":
            raise OSError("no space left")
        if self.key == "fail":
            return Built("does not compile", 0.1)
        folder = Path(os.environ.get("TRITON_CACHE_DIR", Path.home() / ".triton" / "cache"))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{self.key}.cubin").write_bytes(bytes(1000))
        (folder / f"{self.key}.json").write_text(f'{{"cubin": "{folder / self.key}.cubin"}}')
        return Built("", 0.1, capability)
