"""What others type to start a server: command lines, config files, JSON; what they mean to the engine."""
