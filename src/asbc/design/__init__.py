"""What to simulate next: leader bank, proposal, acquisition and the buffer of simulations."""
