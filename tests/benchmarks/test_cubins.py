"""What shipped Triton kernels would save: which kernels are kept, and the share that is saved."""

from benchmarks.torch import cubins


def test_only_the_kernels_of_gemms_are_kept(tmp_path):
    for folder, name in (("A", "triton_tem_fused_mm_0"), ("B", "triton_poi_fused_add_1"), ("C", "triton_tem_fused_2")):
        (tmp_path / "made" / folder).mkdir(parents=True)
        (tmp_path / "made" / folder / f"{name}.cubin").write_text(name)
    assert cubins.keep_products(tmp_path / "made", tmp_path / "kept") == 2
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == ["A", "C"]
    assert (tmp_path / "kept" / "C" / "triton_tem_fused_2.cubin").read_text() == "triton_tem_fused_2"
    assert cubins.keep_products(tmp_path / "nothing", tmp_path / "none") == 0


def test_the_share_is_that_of_the_medians():
    seconds = {"default": [4.0, 5.0, 9.0], "gemmdb": [6.0, 5.0, 7.0], "shipped": [5.4, 5.0]}
    found = [{"kind": "int8", "way": way, "seconds": one} for way, all_of in seconds.items() for one in all_of]
    found.append({"kind": "int8", "way": "shipped", "failure": "out of memory"})
    assert cubins.summary(found) == {
        "bf16": {},
        "int8": {"default": 5.0, "gemmdb": 6.0, "shipped": 5.2, "saved": 0.133},
    }
