"""The one validator: every fault of a schedule or program, and what PyTorch's runtime takes for granted."""
