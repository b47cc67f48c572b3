"""The costly inner loops of encoder and flow, written for a CPU's cache."""
