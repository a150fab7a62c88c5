"""The one place that touches private parts of Inductor. Written for torch 2.11 to 2.15.

Import it only when Inductor is loaded already: it loads the lowering tables. docs/contributing/torch.md says what each
module touches, and how to support another torch.
"""
