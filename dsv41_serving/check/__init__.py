"""What must be true before, while and after something is started."""
