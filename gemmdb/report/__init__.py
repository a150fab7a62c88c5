"""Data and HTML page of `gemmdb report`: for a table, a workload or a comparison.

`documents`, `table` and `workload` (which also covers running programs) produce the JSON that `page` embeds in one HTML
file.
"""
