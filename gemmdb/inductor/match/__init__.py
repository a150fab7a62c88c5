"""Find GEMMs in an FX graph."""
