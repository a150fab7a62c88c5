"""No text of a table gets into code, command lines, paths or patterns: a config holds numbers and known words only."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kit.strategies import configs, problems

from gemmdb.errors import InputError
from gemmdb.kernels.config import Config
from gemmdb.kernels.kernel import IntRange
from gemmdb.kernels.registry import KERNELS
from gemmdb.key import canonical
from gemmdb.key.device import Device
from gemmdb.key.problem import Problem
from gemmdb.table.measurement import Protocol

ATTACKS = [
    "16); import os; os.system('id'); (", "16\nimport os", "__import__('os')", "16 */ system(\"id\"); /*", "${HOME}",
    "64 -o /etc/passwd", "--compiler-bindir=/tmp", "; touch owned", "`id`", "$(id)", "../../etc/passwd", "/etc/passwd",
    "<script>alert(1)</script>", "{{7*7}}", "%s%n", "(a+)+$", "\x00", "1e9", "0x10", "1_0", "\u0661\u0666", "", "~",
    " ", "9" * 5000, "-1", str(2**31), str(2**63), "nan", "True", "16.0",
]  # fmt: skip


@pytest.mark.parametrize("kernel", KERNELS.values(), ids=lambda kernel: f"{kernel.backend}:{kernel.name}")
def test_a_parameter_is_a_number_or_a_word(kernel):
    for name, domain in {**kernel.params, **kernel.optional}.items():
        assert re.fullmatch(r"[a-z][a-z0-9_]*", name)
        if not isinstance(domain, IntRange):
            assert all(type(value) is int or re.fullmatch(r"[a-z0-9_]+", value) for value in domain.values)


@given(config=configs, data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_config_with_anything_else_in_it_is_refused(config, data):
    names = [*config.values]
    if not names:
        return
    name, attack = data.draw(st.sampled_from(names)), data.draw(st.sampled_from(ATTACKS) | st.text(max_size=20))
    domain = {**config.spec.params, **config.spec.optional}[name]
    if attack in domain or (attack.isascii() and attack.isdigit() and len(attack) < 10 and int(attack) in domain):
        return
    with pytest.raises(InputError):
        Config.of(config.backend, config.kernel, **{**config.values, name: attack})
    fields = {**{key: str(value) for key, value in config.values.items()}, name: attack}
    for text in (
        canonical.encode(f"{config.backend}:{config.kernel}", fields.items()),
        " ".join([f"{config.backend}:{config.kernel}", *(f"{key}={value}" for key, value in fields.items())]),
    ):
        with pytest.raises(InputError) as error:
            Config.parse(text)
        assert "\n" not in str(error.value)
        assert len(str(error.value)) < 1000


@pytest.mark.parametrize("attack", ATTACKS)
def test_a_name_of_a_kernel_is_a_known_one(attack):
    for text in (attack, f"triton:{attack}", f"{attack}:tile", f"{attack}:{attack} block_m=16"):
        with pytest.raises(InputError) as error:
            Config.parse(text)
        assert "\n" not in str(error.value)


@given(problem=problems, attack=st.sampled_from(ATTACKS), data=st.data())
@settings(max_examples=200, deadline=None)
def test_a_problem_with_anything_else_in_it_is_refused(problem, attack, data):
    head, *pairs = problem.text.split(" ")
    place = data.draw(st.integers(0, len(pairs) - 1))
    pairs[place] = f"{pairs[place].partition('=')[0]}={attack}"
    try:
        found = Problem.parse(" ".join([head, *pairs])).text
    except InputError as error:
        found = str(error) if "\n" in str(error) else ""
    assert re.fullmatch(r"[a-z0-9_=:\-. ]*", found)


@pytest.mark.parametrize("attack", ATTACKS)
def test_what_names_an_arch_is_a_word(attack):
    """It becomes part of names of files. The name of a SKU does not, and is escaped where it is shown."""
    for arch in (attack, f"sm90{attack}"):
        if not re.fullmatch(r"[a-z][a-z0-9_]*", arch):
            with pytest.raises(InputError):
                Device("cuda", arch, "GPU", 1)
    if not attack.isprintable() or not attack:
        with pytest.raises(InputError):
            Protocol("graph", "cold", 1, 1, reference=attack)
