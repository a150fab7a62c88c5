"""Tables in the formats of others: exporting, importing, and sharing tables over URLs."""
