"""Tables: measurements, the verdicts on them, and the SQLite files that hold both. One reader, one writer."""
