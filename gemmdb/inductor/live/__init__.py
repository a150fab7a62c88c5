"""Live tuning: products that no table answers are measured at compile time."""
