"""Evidence in a few short words."""

from gemmdb.cli import brief


def test_a_refused_kernel_is_named_with_the_reason():
    refused = [{"config": "cpp:packed_gemm threads_m=1", "reason": "it blocks at run time"}]
    assert dict(brief.facts(None, {"refused": refused}))["refused"].endswith(", it blocks at run time")


def test_the_evidence_of_the_hint_of_a_range_is_left_to_wide():
    """It is as long as that of an answer; the range has its own."""
    evidence = {"range": {"m": [2, 64]}, "reason": "no answer at m=4", "hint": {"toolchain": "torch=2.13.0"}}
    assert dict(brief.facts(None, evidence)) == {"range": "m [2, 64]", "reason": "no answer at m=4"}
