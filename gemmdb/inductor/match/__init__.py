"""Finding GEMMs in an FX graph."""
