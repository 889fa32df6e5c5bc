"""How devices are reached: one module per kind, behind one Protocol."""
