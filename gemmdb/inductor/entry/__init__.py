"""Entry points of gemmdb into a compile: `enable`, the backend, the active session, and the two graph passes."""
