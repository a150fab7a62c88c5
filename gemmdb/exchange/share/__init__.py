"""Push and pull of tables at a URL with a manifest."""
