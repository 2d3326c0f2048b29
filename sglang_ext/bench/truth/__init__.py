"""Is it what it says? Rates against the server's own, arms against what is in effect, and against each other."""
