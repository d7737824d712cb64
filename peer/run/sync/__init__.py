"""What follows from the choices of a manifest's [sync] section."""
