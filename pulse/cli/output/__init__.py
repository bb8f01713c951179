"""How answers are printed: JSON documents, tables, styles."""
