"""Attention over packed segments in torch: the definition of the result, on every device."""
