"""The blocks of an experiment file as pydantic models, a file a block."""
