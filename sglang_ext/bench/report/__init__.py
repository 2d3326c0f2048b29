"""A campaign for people: one HTML page, a table on the terminal. Made from the receipt alone, which is never trusted."""
