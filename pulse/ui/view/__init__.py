"""How values become charts and text."""
