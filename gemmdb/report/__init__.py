"""What `gemmdb report` shows: the data of a table, a workload or a comparison, and the page that draws them.

`documents`, `table` and `workload` (also for a running program) make the JSON that `page` puts into one HTML file.
"""
