"""cuBLASLt by ctypes: the library that torch has loaded, its algorithms, and prepared calls. Needs no torch."""
