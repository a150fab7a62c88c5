"""The one place that touches private parts of Inductor. `versions` names the supported torch.

Import it only when Inductor is loaded already: it loads the lowering tables. docs/contributing/torch.md says what each
module touches, and how to support another torch.
"""
