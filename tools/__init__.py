"""What builds, sets up and checks pulse. Nothing here is installed with it."""
