"""Export and import of tables in other formats, and sharing of tables over URLs."""
