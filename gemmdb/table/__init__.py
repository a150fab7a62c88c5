"""Tables: measurements, their verdicts, and the SQLite files that store both, with one reader and one writer."""
