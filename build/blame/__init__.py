"""Which layer broke: cuts of a program, lowered like the whole, compared with PyTorch node by node."""
