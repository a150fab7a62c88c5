"""What Triton's assembler made of a kernel: which instructions write registers that the matrix unit still reads."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gemmdb.generators.measure.cuda.render import Unit

_INSTRUCTION = re.compile(r"/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+ )?(.*?) *;")
_LABEL = re.compile(r"(\.L_x_\d+):")
_BRANCH = re.compile(r"BRA `\((\.L_x_\d+)\)")
_WAIT = re.compile(r"WARPGROUP\.DEPBAR\.LE gsb0, (0x\w+)")
_PRODUCT = re.compile(r"HGMMA\.\S+ R\d+, R(\d+),")
"""With its left operand in registers, four of each thread."""
_WRITTEN = re.compile(r"(\S+) (?:U?P\w+, )?R(\d+)\b")
_READ_ONLY = ("ST", "BAR", "DEPBAR", "WARPGROUP", "BRA", "LDGSTS", "R2UR", "ISETP", "FSETP", "RED", "MEMBAR")


def assembler_code(unit: Unit, folder: Path) -> str:
    """The code of a kernel for compute capability 9.0, as the disassembler prints it. Needs Triton, and no GPU."""
    import triton.backends.nvidia
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    path = folder / f"unit_{unit.key}.py"
    path.write_text(unit.source)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    names = [name for name, _ in unit.args]
    known = {(names.index(name),): [["tt.divisibility", 16]] for name, _ in unit.divisors}
    source = ASTSource(module.kernel, dict(unit.args), {}, known)
    made = triton.compile(source, GPUTarget("cuda", 90, 32), {"num_warps": unit.warps, "num_stages": unit.stages})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(made.asm["cubin"])
        file.flush()
        tool = Path(triton.backends.nvidia.__file__).parent / "bin" / "nvdisasm"
        return subprocess.run([tool, file.name], capture_output=True, text=True, check=True).stdout


def overwritten(code: str) -> list[str]:
    """Instructions in loops that write a register of the left operand of a product in flight. A loop runs twice here:
    products of a step may still be in flight in the next one."""
    instructions, labels = _parsed(code)
    found: list[str] = []
    for end, line in enumerate(instructions):
        branch = _BRANCH.search(line)
        if branch and labels.get(branch[1], end + 1) <= end:
            body = instructions[labels[branch[1]] : end + 1]
            found += _overwritten([*body, *body])
    return found


def products(code: str) -> int:
    """How many products take their left operand from registers."""
    return len(_PRODUCT.findall(code))


def _parsed(code: str) -> tuple[list[str], dict[str, int]]:
    instructions: list[str] = []
    labels: dict[str, int] = {}
    for line in code.splitlines():
        if label := _LABEL.match(line.strip()):
            labels[label[1]] = len(instructions)
        elif instruction := _INSTRUCTION.search(line):
            instructions.append(re.sub(r"\s+", " ", instruction[1]))
    return instructions, labels


def _overwritten(instructions: Sequence[str]) -> list[str]:
    # Products in flight: the groups that a wait counts, the last of which may still get further ones.
    groups: list[list[range]] = [[]]
    found = []
    for line in instructions:
        if wait := _WAIT.match(line):
            groups = groups[max(len(groups) - 1 - int(wait[1], 16), 0) :]
        elif line.startswith("HGMMA"):
            product = _PRODUCT.match(line)
            groups[-1].append(range(int(product[1]), int(product[1]) + 4) if product else range(0))
            if "gsb0" in line:
                groups.append([])
        elif any(register in one for register in _written(line) for group in groups for one in group):
            found.append(line)
    return found


def _written(line: str) -> range:
    """The registers that an instruction writes."""
    match = _WRITTEN.match(line)
    if match is None or line.startswith(_READ_ONLY):
        return range(0)
    name, first = match[1], int(match[2])
    count = 4 if ".128" in name or "88.4" in name else 2 if ".64" in name or ".WIDE" in name or name == "CS2R" else 1
    return range(first, first + count)
