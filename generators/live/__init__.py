"""Live tuning process: a small build of a few problems."""
