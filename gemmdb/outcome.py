"""Outcome of one GEMM, in the words that all commands, pages and JSON share.

`of` maps an answer (of a lookup, a compile's event or an entry of `stats()`) to one of eight outcomes. ATen runs for
four different reasons, and each asks for something else: nothing, a build, or a change of the program.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from gemmdb.errors import InputError
from gemmdb.hit import Hit
from gemmdb.kernels import names
from gemmdb.kernels.config import ATEN, Config

ONLY_ATEN = "ATen is the only kernel for it"
"""Prefix of the note on a GEMM that only ATen can run."""
NOTHING_FASTER = "nothing measured is faster"
NOTHING_EXPECTED = "no kernel is expected to be faster"
NO_TABLE = "no table answers"
NO_KERNEL = "no single kernel is good at all sizes of its range"
"""How the reason begins of a range that ATen serves although kernels are faster at some of its sizes, or although some
sizes were not measured."""
FASTER_AT, GOOD_UP_TO = "faster_at", "good_up_to"
"""Evidence of a range that ATen serves: the rows M at which a kernel is enough faster, and the largest M up to which a
single one is good."""
DISTURBED = "it was timed only while other programs kept the machine busy"
RESPELLED = "the program's own spelling would run a cast and a GEMM: no table says how much this gains over that"
"""Part of the note on a GEMM that runs what ATen stands for in the tables, where default mode would run something else
of ATen's."""
_UNMEASURED_SIZE = "no measured or near answer"
NOT_CONFIRMED = "not confirmed: "
"""How a note begins that says why a config was not confirmed."""
_GAVE_UP = ("not tuned: ", NOT_CONFIRMED)
"""Prefixes of notes on GEMMs that a compile would have benchmarked."""
_PREDICTING = ("near", "epilogue", "sku")
"""Rungs whose times are predictions."""
_NOTHING: Mapping[str, Any] = {}


class Kind(StrEnum):
    """What serves a GEMM. The values are what users read."""

    TABLE = "table"
    """A kernel that was measured for this GEMM."""
    NEAR = "near"
    """A kernel predicted from other measurements: other sizes, another epilogue, another GPU, or the cost model."""
    TUNED = "tuned"
    """A kernel that was benchmarked during this compile."""
    ATEN_BEST = "ATen (measured best)"
    """Measurements found nothing that is enough faster than ATen."""
    ATEN_PREDICTED = "ATen (predicted best)"
    """Nothing is expected to be enough faster than ATen, from measurements of other sizes, another epilogue or another
    GPU: a build makes it certain."""
    ATEN_UNKNOWN = "ATen (nothing known)"
    """No table answers, or only with disturbed times: a build may find a faster kernel."""
    ATEN_REFUSED = "ATen (refused)"
    """No other kernel can run, the table's kernel cannot run here, or no single one is good at all sizes of a range."""
    NOT_HANDLED = "not handled"
    """gemmdb leaves the GEMM to Inductor."""

    @property
    def aten(self) -> bool:
        """Whether ATen runs the GEMM because of a decision of gemmdb."""
        return self in (Kind.ATEN_BEST, Kind.ATEN_PREDICTED, Kind.ATEN_UNKNOWN, Kind.ATEN_REFUSED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What serves a GEMM, and why: one phrase, empty where the kind says it all. `str` gives the words for a user."""

    kind: Kind
    reason: str = ""

    def __str__(self) -> str:
        if self.kind is Kind.ATEN_REFUSED and self.reason:
            return f"ATen (refused: {self.reason})"
        return self.kind.value

    @property
    def group(self) -> Outcome:
        """What GEMMs are counted by: the kind, and the reason of a refusal, or that times were disturbed. Other reasons
        differ between GEMMs of a kind that ask for the same."""
        return self if self.kind is Kind.ATEN_REFUSED or self.disturbed else Outcome(self.kind)

    @property
    def disturbed(self) -> bool:
        """Whether ATen runs because all times were disturbed: an idle machine is needed."""
        return self.reason == DISTURBED

    def document(self) -> dict[str, str]:
        """The fields `outcome` and `why` of JSON output."""
        return {"outcome": self.kind.value, "why": self.reason}


def of(
    rung: str, config: str, note: str = "", evidence: Mapping[str, Any] = _NOTHING, disturbed: bool = False
) -> Outcome:
    """Return the outcome of an answer: its rung (`aten` for a miss, `live`, `forced`, `uncovered`), the canonical text
    of the config that runs, and the note and evidence of an event. A config of max_autotune's search counts as tuned,
    and a forced one as one of a table. A note with RESPELLED stands for ATen. `disturbed`: the time was
    taken only on a busy machine. Such times decide nothing against ATen, so they say nothing for it."""
    if rung == "uncovered":
        return Outcome(Kind.NOT_HANDLED, note)
    respelled = RESPELLED in note
    if (config == ATEN.text or respelled) and "kernels" not in evidence:
        found = _of_aten(rung, note.replace(RESPELLED, "").removesuffix("; "), evidence)
        return Outcome(Kind.ATEN_UNKNOWN, DISTURBED) if disturbed and _is_from_times(found) else found
    if rung in ("live", "aten"):
        return Outcome(Kind.TUNED)
    return Outcome(Kind.TABLE if rung in ("exact", "forced") else Kind.NEAR)


def of_hit(hit: Hit | None, reason: str = "", disturbed: bool = False) -> Outcome:
    """Return the outcome of a lookup. `reason`: why it missed; `disturbed`: as for `of`."""
    return of("aten", ATEN.text, reason) if hit is None else of(hit.rung, hit.config.text, "", hit.evidence, disturbed)


def counted(kinds: Iterable[Kind]) -> str:
    """Return how many GEMMs have each outcome: `3 GEMMs: 2 table, 1 ATen (measured best)`; empty without any."""
    numbers = Counter(kinds)
    total = numbers.total()
    each = ", ".join(f"{numbers[kind]:,} {kind}" for kind in Kind if numbers[kind])
    return f"{total:,} GEMM{'' if total == 1 else 's'}: {each}" if each else ""


def _is_from_times(found: Outcome) -> bool:
    """Whether times decided for ATen, or the lack of them."""
    return found.kind is Kind.ATEN_BEST or found.reason == NO_KERNEL or found.reason.startswith(_UNMEASURED_SIZE)


def _of_aten(rung: str, note: str, evidence: Mapping[str, Any]) -> Outcome:
    first = note.partition("; ")[0]
    if ONLY_ATEN in note:
        return Outcome(
            Kind.ATEN_REFUSED, note.partition(ONLY_ATEN)[2].partition("; ")[0].removeprefix(": ") or ONLY_ATEN
        )
    if rung == "aten":
        return Outcome(Kind.ATEN_UNKNOWN, first or NO_TABLE)
    if "confirmed" in evidence:
        return Outcome(Kind.ATEN_BEST, first)
    if note and not (rung in ("exact", "live") and _is_pick(evidence)):
        gave_up = note.startswith(_GAVE_UP) and rung != "exact"
        return Outcome(Kind.ATEN_UNKNOWN if gave_up else Kind.ATEN_REFUSED, first)
    if why := refusal(evidence):
        return Outcome(Kind.ATEN_REFUSED, why)
    reason = str(evidence.get("reason", ""))
    if reason.startswith(DISTURBED):
        return Outcome(Kind.ATEN_UNKNOWN, DISTURBED)
    if rung == "exact" and reason.startswith(NO_KERNEL) and evidence.get(FASTER_AT):
        return Outcome(Kind.ATEN_REFUSED, NO_KERNEL)
    if rung == "model" or reason.startswith(_UNMEASURED_SIZE):
        return Outcome(Kind.ATEN_UNKNOWN, reason or _held_back(evidence) or NO_TABLE)
    if rung in _PREDICTING:
        return Outcome(Kind.ATEN_PREDICTED, _held_back(evidence, "is expected to gain") or reason or NOTHING_EXPECTED)
    return Outcome(Kind.ATEN_BEST, _held_back(evidence) or reason or NOTHING_FASTER)


def left_out(evidence: Mapping[str, Any]) -> str:
    """Return why the pick of a table is not served, with the kernel's name; empty if it is."""
    return next((f"{_kernel(config)}: {why}" for config, why in evidence.get("left_out", {}).items()), "")


def refusal(evidence: Mapping[str, Any]) -> str:
    """Return why the lookup refused the config that it would have served; empty if it refused none."""
    if why := evidence.get("why"):
        return str(why)
    if refused := evidence.get("refused"):
        return f"{_kernel(refused[0]['config'])}: {refused[0]['reason']}"
    return left_out(evidence)


def _is_pick(evidence: Mapping[str, Any]) -> bool:
    """Whether ATen is what the evidence says, so that a note tells something else."""
    return evidence.get("pick", ATEN.text) == ATEN.text or "held_back" in evidence


def _held_back(evidence: Mapping[str, Any], gains: str = "gains") -> str:
    held = evidence.get("held_back")
    if not held:
        return ""
    return f"{_kernel(held['config'])} {gains} only {held['gain']:.1%} ({held['needed']:.1%} is needed)"


def _kernel(config: str) -> str:
    try:
        return names.kernel(Config.parse(config))
    except InputError:
        return config
