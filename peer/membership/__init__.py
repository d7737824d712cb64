"""What this peer believes of the others."""
