"""How a compile enters gemmdb: enabling, the backend, the active session, and the two graph passes."""
