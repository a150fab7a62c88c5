"""From a program to a table and its speedup: running programs, planning a build, and comparing before and after."""
