"""A cluster of several pools: who may go where, each pool on the calendar or stepped, one result."""
