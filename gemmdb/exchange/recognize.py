"""What a file that cannot be imported seems to be, and what to do with it."""

from __future__ import annotations

import re
from pathlib import Path

from gemmdb import files

BEGINNING = 2**16
"""Bytes of a file that are looked at."""

_KNOWN: tuple[tuple[str, str, str], ...] = (
    (r"SQLite format 3\0", "", "a table: `gemmdb merge` adds its rows to another one"),
    (r"PAR1", "parquet", "a Parquet file"),
    (r'\{"gemmdb_rows"', "jsonl", "gemmdb's JSON Lines"),
    (r"op,m,n,k,batch,sku,", "csv", "gemmdb's CSV of measurements"),
    (r"op,m,n,k,batch,a,b,", "", "gemmdb's list of verdicts, which has no measurements: export the table as csv"),
    (r'\{ *"(?:problem|uncovered)" *:', "", "a workload: `gemmdb build --shapes FILE` measures its GEMMs"),
    (r"[^{}]{0,4000}?^ *(?:AUTOTUNE \w+\(|SingleProcess AUTOTUNE |\w+ [\d.]+ ms \d)", "",
     "what Inductor prints while it autotunes, which lacks most of each kernel: set TORCHINDUCTOR_MM_LOGGING_FILE, run"
     " the program again and import that file with --from inductor-log"),
    (r"(?:Validator,[^\n]*\n)*\w+TunableOp_[\w:<>]+,\w+(?:,- \{[^\n]*)?\r?(?:\n|\Z)", "",
     "a list of GEMMs that TunableOp has not timed: pass it to torch.cuda.tunable.tune_gemm_in_file, and import the"
     " results"),
    (r"Validator,\w+,|\w+TunableOp_[\w:<>]+,\w+,\w+,", "tunableop", "TunableOp's results"),
    (r'\{[^{}]*(?:"system"|"cache") *:', "inductor-cache", "Inductor's autotune cache"),
    (r'\[?\s*\{\s*"(?:invoke|kernel_type|\(\d+, \d+, \d+\))"', "inductor-log", "Inductor's log of timings"),
    (r'\{\s*"[^"\n]{0,80}\+?\(\(torch\.', "", "PyTorch's lookup table, which has no times"),
    (r'\{[^{}]*"(?:configs_hash|found_by_coordesc)" *:', "",
     "the best launch of one kernel that Inductor wrote; it names no GEMM"),
    (r'\{(?:\s*"triton_version": *"[^"]*",)?\s*"\d+": *\{\s*"\d+": *\{', "",
     "vLLM's configs of LoRA kernels; gemmdb has no op for them"),
    (r'\{[^{}]*"\d+": *\{[^{}]*"BLOCK_SIZE_[MN]"', "vllm", "vLLM's configs by M"),
)  # fmt: skip
"""How each file begins, as a pattern; the format that reads it, or nothing; what it is, and what to do instead."""


def is_page(path: Path) -> bool:
    """Return whether a file is an HTML page, as a browser saves in place of a file."""
    try:
        with path.open("rb") as file:
            return files.is_page(file.read(BEGINNING))
    except OSError:
        return False


def advice(path: Path, kind: str) -> str:
    """Return the end of an error message about a file that cannot be read as `kind`: what it seems to be and what to
    do. Empty if it cannot be told, or if it is of that kind."""
    try:
        with path.open("rb") as file:
            text = file.read(BEGINNING).decode("utf-8-sig", "replace").lstrip()
    except OSError:
        return ""
    for pattern, form, what in _KNOWN:
        if re.match(pattern, text, re.MULTILINE):
            if form == kind:
                return ""
            return f"; the file is {what}{f': import it with --from {form}' if form else ''}"
    return ""
