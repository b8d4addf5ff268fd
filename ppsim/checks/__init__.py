"""The one validator: every fault of a schedule or program, and the assumptions of PyTorch's runtime."""
