"""Tables for gemmdb: the `.db` files in this folder. Nothing imports this module."""
