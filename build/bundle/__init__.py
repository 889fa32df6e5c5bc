"""Release archives: what a receiver gets, how it is checked, and which version a channel points to."""
