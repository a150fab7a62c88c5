"""What `gemmdb report` shows: the data of a table, a workload or a comparison, and the page that draws them.

`table`, `workload` and `comparison` compute the data, as frozen dataclasses. `page` makes one HTML file of them.
"""
