"""The experiment file as text and as data: YAML with its lines, faults in the user's words, the blocks."""
