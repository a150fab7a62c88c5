"""The process that tunes live: a small build of a few problems."""
