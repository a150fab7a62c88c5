"""What tests are made of: problems, configs, measurements, tables and catalogs, built in one line each."""

import pytest

pytest.register_assert_rewrite("kit.dequantised", "kit.gpu", "kit.inductor", "kit.lab", "kit.tables")
