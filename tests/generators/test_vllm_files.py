"""vLLM's JSON files of configs by M: its naming rules, what is written is read back, and what strangers may send."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmdb.errors import InputError
from gemmdb.generators import vllm_files
from gemmdb.generators.vllm_files import BLOCKS, KEYS, WARPS, Name, Tile

SIZES = st.integers(1, 10**9 - 1)
DEVICES = st.sampled_from(
    ["NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB", "NVIDIA H200 NVL", "AMD Instinct MI300X",
     "Intel(R) Arc(TM) Pro B70 Graphics", "NVIDIA GH200 480GB", "AMD Radeon Pro V620 / MxGPU"]
)  # fmt: skip
DTYPES = st.sampled_from(["", "fp8_w8a8", "int8_w8a16", "int4_w4a16", "float32"])
BLOCK_SHAPES = st.none() | st.tuples(st.sampled_from([32, 64, 128]), st.sampled_from([32, 64, 128]))
NAMES = st.builds(Name, DEVICES, SIZES, experts=SIZES, dtype=DTYPES, block=BLOCK_SHAPES) | st.builds(
    Name, DEVICES, SIZES, k=SIZES, dtype=st.just("fp8_w8a8"), block=st.just((128, 128))
)
BLOCK = st.sampled_from(BLOCKS)
TILES = st.builds(Tile, BLOCK, BLOCK, BLOCK, st.integers(1, 128), st.sampled_from(WARPS), st.integers(1, 8))
GOOD = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 128, "GROUP_SIZE_M": 64, "num_warps": 4,
        "num_stages": 4}  # fmt: skip


def loader_name(name: Name) -> str:
    """The name as vLLM's documentation builds it, part by part."""
    device = "_".join(re.split(r"[\s/]+", name.device))
    parts = []
    if name.experts is not None:
        if "_H200" in device + "_" and "H200" in device.split("_"):
            device = "NVIDIA_H200"
        parts += [f"E={name.experts}", f"N={name.n}"]
    else:
        parts += [f"N={name.n}", f"K={name.k}"]
    parts.append("device_name=" + device)
    if name.dtype:
        parts.append("dtype=" + name.dtype)
    if name.block:
        parts.append("block_shape=" + json.dumps(list(name.block), separators=(",", ":")))
    return ",".join(parts) + ".json"


def loaded(path: Path) -> dict[int, dict[str, int]]:
    """What vLLM's loaders of any version make of a file: every key is an M."""
    return {int(key): value for key, value in json.loads(path.read_text()).items()}


@given(name=NAMES, tiles=st.dictionaries(st.integers(1, 100_000), TILES, min_size=1, max_size=18))
def test_what_is_written_is_found_and_loaded_as_vllm_does_and_read_back(name, tiles, tmp_path_factory):
    folder = tmp_path_factory.mktemp("configs")
    path = vllm_files.write(folder, name, tiles)
    assert path == folder / loader_name(name)
    assert loaded(path) == {m: dict(zip(KEYS, vars(tile).values(), strict=True)) for m, tile in tiles.items()}
    assert list(loaded(path)) == sorted(tiles)
    found = vllm_files.read(path)
    assert (dict(found.tiles), dict(found.left)) == (tiles, {})
    assert Name.parse(path.name).text == path.name


def test_vllms_own_function_gives_the_same_name(monkeypatch):
    spec = importlib.util.find_spec("vllm")
    if spec is None or spec.origin is None:
        pytest.skip("vLLM is not installed")
    source = Path(spec.origin).parent / "model_executor" / "layers" / "fused_moe" / "fused_moe.py"
    if not source.exists():
        pytest.skip("vLLM is installed without its Python layer")
    body = [one for one in ast.parse(source.read_text()).body if getattr(one, "name", "") == "get_config_file_name"]
    for device in ("NVIDIA H200", "NVIDIA H100 80GB HBM3", "NVIDIA H200 NVL"):
        platform = SimpleNamespace(get_device_name=lambda device=device: device)
        scope = {"current_platform": platform, "get_device_name_as_file_name": lambda d=device: d.replace(" ", "_")}
        exec(compile(ast.Module(body, []), str(source), "exec"), scope)
        for dtype, block in ((None, None), ("fp8_w8a8", None), ("fp8_w8a8", [128, 128])):
            ours = Name(device, 512, experts=256, dtype=dtype or "", block=tuple(block) if block else None)
            assert ours.text == scope["get_config_file_name"](256, 512, dtype, block)


@pytest.mark.parametrize(
    ("document", "ms", "left"),
    [
        ({"1": GOOD, "4096": GOOD}, [1, 4096], {}),
        ({"triton_version": "3.5.1", "16": GOOD}, [16], {}),
        ({"16": GOOD | {"SPLIT_K": 1}, "32": GOOD | {"num_ctas": 1}}, [16, 32], {}),
        ({"16": GOOD | {"SPLIT_K": 4}}, [], {16: "the kernel has no SPLIT_K"}),
        ({"16": GOOD | {"waves_per_eu": 0, "kpack": 2}}, [], {16: "the kernel has no waves_per_eu"}),
        ({"1": {"tile_m": 16, "tile_n": 64}}, [], {1: f"the config lacks {', '.join(KEYS)}"}),
        ({"1": GOOD | {"BLOCK_SIZE_M": 8}}, [], {1: "BLOCK_SIZE_M is out of range"}),
        ({"1": GOOD | {"BLOCK_SIZE_K": 96}}, [], {1: "BLOCK_SIZE_K is out of range"}),
        ({"1": {key: GOOD[key] for key in KEYS[:4]}}, [], {1: "the config lacks num_warps, num_stages"}),
    ],
)
def test_formats_of_several_versions_are_read(tmp_path, document, ms, left):
    path = tmp_path / "E=8,N=64,device_name=X.json"
    path.write_text(json.dumps(document, indent=4))
    found = vllm_files.read(path)
    assert list(found.tiles) == ms
    assert {m: rejected.reason for m, rejected in found.left.items()} == left


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ('{"1": ' + "9" * 5000 + "}", "not JSON"),
        ("[]", "not an object with configs by M"),
        ("null", "not an object with configs by M"),
        (json.dumps({str(m): GOOD for m in range(1, 1500)}), "more than 1,000"),
        ('{"a": {}}', "'a' is not an M"),
        ('{"0": {}}', "'0' is not an M"),
        ('{"-1": {}}', "'-1' is not an M"),
        ('{"1\\n2": {}}', "'1 2' is not an M"),
        ('{"9999999999999": {}}', "is not an M"),
        ('{"triton_version": {"a": 1}}', "'triton_version' is not an M"),
        ('{"16": 5}', "M=16: not a config: 5"),
        ('{"16": [1, 2]}', "M=16: not a config"),
        (json.dumps({"16": {f"x{i}": i for i in range(50)}}), "M=16: not a config"),
        ('{"16": {"num_warps": "4; import os"}}', "num_warps must be an integer"),
        ('{"16": {"num_warps": 4.0}}', "num_warps must be an integer"),
        ('{"16": {"num_warps": true}}', "num_warps must be an integer"),
        ('{"16": {"BLOCK_SIZE_M": NaN}}', "BLOCK_SIZE_M must be an integer"),
        ('{"16": {"BLOCK_SIZE_M": [16]}}', "BLOCK_SIZE_M must be an integer"),
        ('{"16": {"num_stages": null}}', "num_stages must be an integer"),
    ],
)
def test_hostile_files_are_refused_with_their_name(tmp_path, text, said):
    path = tmp_path / "E=8,N=64,device_name=X.json"
    path.write_text(text)
    with pytest.raises(InputError, match=re.escape(said)) as error:
        vllm_files.read(path)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("data", [b"\xff\xfe\x00", b'{"1": "' + b"x" * 2**20 + b'"}'])
def test_bytes_that_are_no_text_and_files_that_are_too_large_are_refused(tmp_path, data):
    path = tmp_path / "x.json"
    path.write_bytes(data)
    with pytest.raises(InputError):
        vllm_files.read(path)


def test_values_out_of_range_are_left_out_however_large(tmp_path):
    path = tmp_path / "x.json"
    path.write_text(json.dumps({"1": GOOD | {"num_stages": 10**30}, "2": GOOD | {"GROUP_SIZE_M": -1}}))
    assert {m: one.reason for m, one in vllm_files.read(path).left.items()} == {
        1: "num_stages is out of range", 2: "GROUP_SIZE_M is out of range",
    }  # fmt: skip


@pytest.mark.parametrize(
    "text",
    [
        "E=8,N=64,device_name=../../etc/passwd.json",
        "E=8,N=64,device_name=X,dtype=a/b.json",
        "E=08,N=64,device_name=X.json",
        "E=8,N=0,device_name=X.json",
        "E=8,device_name=X.json",
        "N=8,device_name=X.json",
        "E=8,N=8,K=8,device_name=X.json",
        "E=8,N=64,device_name=X,block_shape=[128].json",
        "E=8,N=64,device_name=X,dtype=int4_w4a16,backend=flydsl.json",
        "E=8,N=64,device_name=.json",
        "E=8,N=64,device_name=X\n.json\n",
        "config.json",
        "E=8,N=" + "9" * 4000 + ",device_name=X.json",
    ],
)
def test_other_file_names_are_refused(text):
    with pytest.raises(InputError):
        Name.parse(text)


@pytest.mark.parametrize("device", ["", "X,dtype=int8_w8a8", "X]", "X\x00", "X=Y", "X" * 101])
def test_a_device_that_would_change_the_name_is_refused(device):
    with pytest.raises(InputError):
        Name(device, 64, experts=8)


def test_a_file_without_configs_is_not_written(tmp_path):
    with pytest.raises(InputError, match="no config to write"):
        vllm_files.write(tmp_path, Name("X", 64, experts=8), {})
    assert list(tmp_path.iterdir()) == []
