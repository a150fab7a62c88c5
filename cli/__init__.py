"""The `gemmdb` command: each command parses, calls one function and prints."""
