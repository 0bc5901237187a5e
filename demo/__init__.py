"""A year of New York's flights on the whole way: from the producers' appends to a Spark result."""
