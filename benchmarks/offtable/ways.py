"""Two ways to look up what the table does not hold."""

from gemmdb.settings import Policy

WAYS = {"certain": Policy(on_miss="aten", confirm=False), "confirming": Policy(on_miss="aten", confirm=True)}
"""`certain`: only what is faster than ATen for certain is served. `confirming`: as before an answer is timed."""
