"""From a program to a table and what it gains: running programs, planning a build, and comparing before and after."""
