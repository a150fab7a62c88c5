"""What `gemmdb report` shows: the data of a table, a workload or a comparison, and the page that draws them.

`table`, `workload`, `comparison` and `program` compute the data, as frozen dataclasses. `page` makes one HTML file of
them. `gemmdb.inductor.report` writes the page of what gemmdb did in a process.
"""
