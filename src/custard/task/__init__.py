"""What is to be solved, and how it is stepped and judged."""
