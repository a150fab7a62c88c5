"""The offline phase: shapes, candidates, measurement, verification, storage."""
