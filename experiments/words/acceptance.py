"""What is said of conditional acceptance and draft acceptance rate wherever both are printed."""

BOTH_RIGHT = (
    "Both are right: 1 + K r counts accepted over drafted, whatever the traffic; (1 - a^(K+1))/(1 - a) asks "
    "each draft once those before it passed; a rejection voids later drafts, so one drafter has r below a."
)
