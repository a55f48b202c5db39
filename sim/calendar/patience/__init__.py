"""Clients that give up, on the calendar: who leaves a lane before the end, and what each attempt was."""
